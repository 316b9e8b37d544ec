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

/** Definitions of a namespace's server that wait for an operator. */
export interface WaitingPins {
  mode: "warn" | "enforce";
  changed?: string[];
  new?: string[];
  suspicious?: string[];
  more?: number;
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
  sandbox: { mode: string; missing?: string[] } | null;
  error: Trouble | null;
  issues: Trouble[];
  pins?: WaitingPins | null;
}

export interface Tool {
  name: string;
  title?: string;
  description?: string;
  inputSchema?: Schema;
  outputSchema?: Schema;
  annotations?: JsonObject;
  filename?: string;
  _meta?: JsonObject;
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

export interface Scope {
  name: string;
  /** Patterns of tool names. */
  tools: string[];
}

export interface Key {
  id: string;
  name: string;
  principal: string;
  made_by: string | null;
  state: "active" | "expired" | "revoked";
  scopes: string[];
  namespaces: string[];
  networks: string[];
  limits: string[];
  created: string;
  expires: string | null;
  last_used: string | null;
  revoked: string | null;
}

/** The answer to the request that makes a key: the key itself is in no other. */
export interface MadeKey extends Key {
  key: string;
  notes?: string[];
}

export interface KeyReach {
  opens: Array<{ namespace: string; open: number; tools: number }> | null;
  notes: string[];
}

export interface KeyRules {
  allowed: boolean;
  rules: Array<{ rule: string; allows: boolean; says: string }>;
  tools?: Array<{ name: string; allowed: boolean; refused_by?: string }>;
  left_out?: number;
  notes?: string[];
}

export interface Backend {
  backend: string;
  healthy: boolean;
  draining: boolean;
  problem: string | null;
}

export interface GatewayStatus {
  gateway: Dashboard;
  namespaces: Array<Namespace & { backends: Backend[]; members: Array<{ name: string; state: string; reason?: string }> }>;
  unserved: Array<{ name: string; code: string; message: string }>;
  certificates: Array<{ listener: string; ends: string | null }>;
  reload: { result: string; at: string | null; seconds: number; problem: string | null } | null;
  replicas: { name: string; store: string; rival: boolean; others: Array<{ name: string; problem: string | null; sources?: string }> } | null;
}

export interface ReloadReport {
  namespaces: string[];
  workers_restarted: string[];
  failed: Array<{ namespace: string; code: string; message: string }>;
  issues: Array<{ namespace: string; subject?: string; message: string }>;
  replicas?: Array<{ name: string; outcome: string; failed?: number }>;
}

/** A line of the gateway's log. */
export interface LogLine {
  number: number;
  ts: string;
  level: string;
  text: string;
}

/** A line that a process of a namespace printed. */
export interface OutputLine {
  number: number;
  ts: string;
  pid: number | null;
  stream: string;
  text: string;
}

export interface FoundThing {
  kind: "namespace" | "tool" | "server" | "folder" | "secret" | "key";
  name: string;
  of?: string;
  about?: string;
}

export interface ConfiguredValue {
  key: string;
  value: Json;
  /** The name of a variable, the path of a file, or `default`. */
  source: string;
}

export interface ConfigurationChange {
  key: string;
  now: Json;
  then: Json;
  waits_for_start: boolean;
}
