// The shapes of docs/api.md that the pages use.
import type { Json, JsonObject } from "./api.ts";
import type { Schema } from "./schema.ts";

export interface Me {
  principal: string;
  version: string;
  management: boolean;
  /** Secrets may be set over this connection. */
  secure: boolean;
  mcp_url?: string | null;
}

export interface Trouble {
  code: string;
  subject?: string;
  message: string;
  hint?: string;
}

export interface Dashboard {
  namespaces: number;
  tools: number;
  servers: { total: number; running: number };
  data_dir: string;
  host_data_dir: string;
  uptime_seconds: number;
  version: string;
  status: string;
  sessions: number;
  streams: number;
  calls_per_minute: number;
  error_rate: number | null;
  p95_ms: number | null;
  problem: Trouble | null;
}

export interface Namespace {
  name: string;
  kind: string;
  state: string;
  description?: string;
  endpoint: string;
  tool_count: number;
  folder: boolean;
  has_requirements: boolean;
  secrets_status: string;
  calls_per_minute: number;
  error_rate: number | null;
  p95_ms: number | null;
  in_flight: number;
  error: Trouble | null;
  issues: Trouble[];
}

export interface Tool {
  name: string;
  title?: string;
  description?: string;
  inputSchema?: Schema;
  outputSchema?: Schema;
  annotations?: JsonObject;
  filename?: string;
}

export interface Folder {
  name: string;
  endpoint: string;
  tool_count: number;
  tools: string[];
}

export interface SourceFile {
  filename: string;
  size: number;
  modified: string;
  tools: string[];
  versions: number;
  error: { error: string; details: string } | null;
}

export interface Validity {
  valid: boolean;
  tools?: Array<{ name: string; description?: string }>;
  error?: string;
  details?: string;
  line?: number | null;
  column?: number | null;
}

export interface Server {
  server_id: string;
  namespace: string;
  endpoint: string;
  enabled: boolean;
  status: string;
  managed: boolean;
  kind: string;
  tool_count: number;
  config: JsonObject | null;
  error: Trouble | null;
}

export interface Secret {
  key: string;
  scope: string;
  status: "set" | "placeholder" | "missing";
  used_by: string[];
}

export interface CallRecord {
  id: string;
  ts: string;
  request_id?: string;
  transport?: string;
  namespace?: string;
  via?: string;
  tool?: string;
  method?: string;
  subject?: string;
  status: string;
  http_status?: number;
  latency_ms?: number;
  session?: string;
  client?: string;
  principal?: string;
  [other: string]: Json | undefined;
}
