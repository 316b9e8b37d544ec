// What a form must know of a JSON schema: references resolved, alternatives named, values to begin with.
import type { Json, JsonObject } from "./api.ts";

export interface Schema {
  [key: string]: unknown;
  type?: string | string[];
  title?: string;
  description?: string;
  default?: Json;
  enum?: Json[];
  const?: Json;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema | boolean;
  additionalProperties?: Schema | boolean;
  format?: string;
  contentEncoding?: string;
  contentMediaType?: string;
}

export type Kind = "const" | "enum" | "choice" | "string" | "number" | "integer" | "boolean" | "array" | "object" | "null" | "any";

const DEEPEST_REFERENCE = 20;

/** The schema with its `$ref` followed and its `allOf` merged. A reference to elsewhere stays unknown. */
export function resolve(given: unknown, root: Schema): Schema {
  let schema: Schema = isObject(given) ? (given as Schema) : {};
  for (let depth = 0; typeof schema.$ref === "string" && depth < DEEPEST_REFERENCE; depth += 1) {
    const { $ref, ...beside } = schema;
    schema = { ...lookUp($ref as string, root), ...beside };
  }
  if (typeof schema.$ref === "string") return {};
  if (Array.isArray(schema.allOf)) {
    const { allOf, ...rest } = schema;
    schema = (allOf as unknown[]).slice(0, 50).reduce<Schema>((whole, part) => merge(whole, resolve(part, root)), rest);
  }
  return schema;
}

function merge(first: Schema, second: Schema): Schema {
  return {
    ...second,
    ...first,
    ...(first.properties || second.properties ? { properties: { ...second.properties, ...first.properties } } : {}),
    ...(first.required || second.required ? { required: [...(first.required ?? []), ...(second.required ?? [])] } : {}),
  };
}

function lookUp(reference: string, root: Schema): Schema {
  if (!reference.startsWith("#")) return {};
  let at: unknown = root;
  for (const part of reference.slice(1).split("/").filter(Boolean)) {
    const name = decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~");
    at = isObject(at) && Object.hasOwn(at, name) ? at[name] : undefined;
  }
  return isObject(at) ? (at as Schema) : {};
}

export interface Described {
  schema: Schema;
  kind: Kind;
  /** `null` is allowed beside what the form shows. */
  nullable: boolean;
  choices: Schema[];
}

/** What the form shows for a schema. `X or null` is X that may be left empty. */
export function describe(given: unknown, root: Schema): Described {
  const schema = resolve(given, root);
  const plain = (kind: Kind): Described => ({ schema, kind, nullable: false, choices: [] });
  if ("const" in schema) return plain("const");
  if (Array.isArray(schema.enum)) return plain("enum");
  const alternatives = (Array.isArray(schema.anyOf) ? schema.anyOf : Array.isArray(schema.oneOf) ? schema.oneOf : null)
    ?? (Array.isArray(schema.type) ? schema.type.map((type) => ({ ...schema, type, default: undefined })) : null);
  if (alternatives) {
    const choices = alternatives.map((choice) => resolve(choice, root));
    const others = choices.filter((choice) => choice.type !== "null");
    const nullable = others.length < choices.length;
    if (others.length === 1) {
      const { anyOf: _, oneOf: __, ...outer } = schema;
      const inner = describe({ ...others[0], ...withoutType(outer), title: outer.title ?? others[0].title, description: outer.description ?? others[0].description }, root);
      return { ...inner, nullable: true };
    }
    // Constants side by side are an enum in other words.
    if (others.length && others.every((choice) => "const" in choice)) return { schema: { ...schema, enum: others.map((choice) => choice.const as Json) }, kind: "enum", nullable, choices: [] };
    return { schema, kind: "choice", nullable, choices: others };
  }
  if (schema.type === undefined && schema.properties) return plain("object");
  const types = ["string", "number", "integer", "boolean", "array", "object", "null"];
  return plain(types.includes(schema.type as string) ? (schema.type as Kind) : "any");
}

function withoutType(schema: Schema): Schema {
  if (!Array.isArray(schema.type)) return schema;
  const { type: _, ...rest } = schema;
  return rest;
}

/** Whether a string holds a file: bytes as base64. */
export function holdsFile(schema: Schema): boolean {
  return schema.contentEncoding === "base64" || ["binary", "byte", "base64", "base64url"].includes(schema.format ?? "");
}

/** What a form begins with: defaults, and what must be there. `undefined` is not sent. */
export function initial(given: unknown, root: Schema, required: boolean, depth = 0): Json | undefined {
  const { schema, kind, nullable } = describe(given, root);
  if (schema.default !== undefined && schema.default !== null) return structuredClone(schema.default);
  if (kind === "const") return required ? (schema.const as Json) : undefined;
  if (!required || depth > 6) return undefined;
  if (nullable) return null;
  if (kind === "object") {
    const value: JsonObject = {};
    for (const [name, property] of Object.entries(schema.properties ?? {})) {
      const member = initial(property, root, schema.required?.includes(name) ?? false, depth + 1);
      if (member !== undefined) value[name] = member;
    }
    return value;
  }
  if (kind === "array") return [];
  if (kind === "boolean") return false;
  if (kind === "null") return null;
  return undefined;
}

/** The name of an alternative in a list of choices. */
export function choiceName(choice: Schema, index: number, root: Schema): string {
  const { schema, kind } = describe(choice, root);
  if (schema.title) return schema.title;
  if (kind === "const") return JSON.stringify(schema.const);
  if (kind === "object") {
    const told = Object.entries(schema.properties ?? {}).find(([, property]) => "const" in resolve(property, root));
    if (told) return `${told[0]}: ${String(resolve(told[1], root).const)}`;
  }
  if (kind === "array") return `list of ${describe(schema.items, root).kind}`;
  return kind === "any" ? `Choice ${index + 1}` : kind;
}

/** Which alternative a value is most likely of. */
export function choiceOf(value: Json | undefined, choices: Schema[], root: Schema): number {
  if (value === undefined) return -1;
  const scores = choices.map((choice) => fit(value, choice, root));
  const best = Math.max(...scores);
  return best > 0 ? scores.indexOf(best) : -1;
}

function fit(value: Json, choice: Schema, root: Schema): number {
  const { schema, kind } = describe(choice, root);
  if (kind === "const") return JSON.stringify(schema.const) === JSON.stringify(value) ? 5 : 0;
  if (kind === "enum") return schema.enum!.some((one) => JSON.stringify(one) === JSON.stringify(value)) ? 4 : 0;
  if (kind === "any" || kind === "choice") return 1;
  if (kind === "object") {
    if (!isObject(value)) return 0;
    const properties = Object.entries(schema.properties ?? {});
    if (properties.some(([name, property]) => "const" in resolve(property, root) && value[name] !== undefined && value[name] !== resolve(property, root).const)) return 0;
    return 2 + properties.filter(([name]) => name in value).length / (properties.length + 1);
  }
  if (kind === "array") return Array.isArray(value) ? 2 : 0;
  if (kind === "integer") return Number.isInteger(value) ? 3 : 0;
  return typeof value === kind ? 2 : 0;
}

export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A type in a word or two, for labels. */
export function typeName(given: unknown, root: Schema): string {
  const { schema, kind, choices } = describe(given, root);
  if (kind === "array") return `list of ${describe(schema.items, root).kind === "any" ? "anything" : typeName(schema.items, root)}`;
  if (kind === "choice") return choices.length > 3 ? `one of ${choices.length} forms` : choices.map((choice, index) => choiceName(choice, index, root)).join(" or ");
  if (kind === "string" && holdsFile(schema)) return "file";
  if (kind === "string" && schema.format) return schema.format;
  if (kind === "enum") return "choice";
  return kind === "any" ? "JSON" : kind;
}
