// A form from a JSON schema. Its state is the JSON value itself; `undefined` is what is not sent.
import { useId, useState } from "preact/hooks";
import type { Json, JsonObject } from "../api.ts";
import { choiceName, choiceOf, describe, holdsFile, initial, isObject, typeName, type Schema } from "../schema.ts";
import { Button } from "./basics.tsx";
import { FileInput } from "./files.tsx";
import { size } from "./format.ts";

/** A nested object or list below this depth is typed as JSON. */
const DEEPEST = 6;
/** A longer list is typed as JSON. */
const MOST_ITEMS = 100;

type Change = (value: Json | undefined) => void;
interface FieldProps {
  name: string;
  given: unknown;
  root: Schema;
  value: Json | undefined;
  required: boolean;
  depth: number;
  path: string;
  problems: Problems;
  onChange: Change;
  remove?: () => void;
}
/** What is wrong, by the path of the field. */
export type Problems = Record<string, string>;

/** The fields of a tool's arguments. */
export function SchemaForm({ schema, value, problems, onChange }: { schema: Schema; value: JsonObject; problems: Problems; onChange: (value: JsonObject) => void }) {
  const { schema: whole } = describe(schema, schema);
  if (!Object.keys(whole.properties ?? {}).length && !takesOthers(whole)) return <p class="quiet">No arguments.</p>;
  return <Members schema={whole} root={schema} value={value} depth={0} path="" problems={problems} onChange={onChange} />;
}

function takesOthers(schema: Schema): boolean {
  return schema.additionalProperties === true || isObject(schema.additionalProperties);
}

function Members(props: { schema: Schema; root: Schema; value: JsonObject; depth: number; path: string; problems: Problems; onChange: (value: JsonObject) => void }) {
  const { schema, root, value, depth, path } = props;
  const properties = Object.entries(schema.properties ?? {});
  const set = (name: string, member: Json | undefined) => {
    const { [name]: _, ...rest } = value;
    props.onChange(member === undefined ? rest : { ...value, [name]: member });
  };
  return (
    <>
      {properties.map(([name, property]) => (
        <SchemaField
          key={name}
          name={name}
          given={property}
          root={root}
          value={value[name]}
          required={schema.required?.includes(name) ?? false}
          depth={depth}
          path={`${path}/${name}`}
          problems={props.problems}
          onChange={(member) => set(name, member)}
        />
      ))}
      {takesOthers(schema) && <OtherMembers {...props} known={properties.map(([name]) => name)} />}
    </>
  );
}

/** Members whose names the schema leaves open: a name and a value each. */
function OtherMembers(props: { schema: Schema; root: Schema; value: JsonObject; depth: number; path: string; known: string[]; problems: Problems; onChange: (value: JsonObject) => void }) {
  const [name, setName] = useState("");
  const id = useId();
  const given = isObject(props.schema.additionalProperties) ? props.schema.additionalProperties : {};
  const others = Object.keys(props.value).filter((member) => !props.known.includes(member));
  const add = () => {
    if (!name || name in props.value) return;
    props.onChange({ ...props.value, [name]: initial(given, props.root, true) ?? "" });
    setName("");
  };
  return (
    <>
      {others.map((member) => (
        <SchemaField
          key={member}
          name={member}
          given={given}
          root={props.root}
          value={props.value[member]}
          required
          depth={props.depth}
          path={`${props.path}/${member}`}
          problems={props.problems}
          onChange={(changed) => props.onChange({ ...props.value, [member]: changed ?? null })}
          remove={() => {
            const { [member]: _, ...rest } = props.value;
            props.onChange(rest);
          }}
        />
      ))}
      <div class="add-member">
        <label for={id}>{props.known.length ? "Another field" : "Name of a field"}</label>
        <input id={id} value={name} onInput={(event) => setName(event.currentTarget.value)} onKeyDown={(event) => event.key === "Enter" && (event.preventDefault(), add())} />
        <Button small onClick={add} disabled={!name}>Add</Button>
      </div>
    </>
  );
}

function SchemaField(props: FieldProps) {
  const id = useId();
  const described = describe(props.given, props.root);
  const { schema, kind } = described;
  const problem = props.problems[props.path];
  const about = [schema.description && `${id}-about`, problem && `${id}-problem`].filter(Boolean).join(" ");
  const control = { id, "aria-describedby": about || undefined, "aria-invalid": problem ? ("true" as const) : undefined, "aria-required": props.required || undefined };
  const nested = props.depth < DEEPEST && (kind === "object" || kind === "choice" || (kind === "array" && (!Array.isArray(props.value) || props.value.length <= MOST_ITEMS)));
  const head = (
    <>
      <span class="field-name">{props.name}</span>
      {props.required && !props.remove && <span class="required"> required</span>}
      <span class="type">{typeName(props.given, props.root)}</span>
    </>
  );
  const notes = schema.description && <p class="hint" id={`${id}-about`}>{schema.description}</p>;
  const complaint = problem && <p class="complaint" id={`${id}-problem`}>{problem}</p>;
  const removal = props.remove && <Button small onClick={props.remove} label={`Remove ${props.name}`}>Remove</Button>;
  if (nested) {
    return (
      <fieldset class="field nested" id={id} aria-describedby={about || undefined}>
        <legend>{head}</legend>
        {notes}
        {kind === "object" && <ObjectBody {...props} schema={schema} />}
        {kind === "array" && <ListBody {...props} schema={schema} />}
        {kind === "choice" && <ChoiceBody {...props} choices={described.choices} />}
        {complaint}
        {removal}
      </fieldset>
    );
  }
  return (
    <div class="field">
      <label for={id}>{head}</label>
      {notes}
      <div class="control">
        <Scalar {...props} schema={schema} kind={kind} nullable={described.nullable} control={control} />
        {removal}
      </div>
      {complaint}
    </div>
  );
}

function ObjectBody(props: FieldProps & { schema: Schema }) {
  if (!isObject(props.value)) {
    return <Button small onClick={() => props.onChange(initial(props.given, props.root, true) ?? {})} label={`Fill in ${props.name}`}>Fill in</Button>;
  }
  return (
    <>
      <Members schema={props.schema} root={props.root} value={props.value} depth={props.depth + 1} path={props.path} problems={props.problems} onChange={props.onChange} />
      {!props.required && <Button small onClick={() => props.onChange(undefined)} label={`Leave out ${props.name}`}>Leave out</Button>}
    </>
  );
}

function ListBody(props: FieldProps & { schema: Schema }) {
  const items = Array.isArray(props.value) ? props.value : [];
  const given = props.schema.items ?? {};
  const most = typeof props.schema.maxItems === "number" ? props.schema.maxItems : Infinity;
  return (
    <>
      {items.map((item, index) => (
        <SchemaField
          key={index}
          name={`${props.name} ${index + 1}`}
          given={given}
          root={props.root}
          value={item ?? undefined}
          required
          depth={props.depth + 1}
          path={`${props.path}/${index}`}
          problems={props.problems}
          onChange={(changed) => props.onChange(items.map((other, at) => (at === index ? changed ?? null : other)))}
          remove={() => {
            const rest = items.filter((_, at) => at !== index);
            props.onChange(rest.length || props.required ? rest : undefined);
          }}
        />
      ))}
      <Button small disabled={items.length >= most} onClick={() => props.onChange([...items, initial(given, props.root, true) ?? null])} label={`Add to ${props.name}`}>
        Add
      </Button>
    </>
  );
}

function ChoiceBody(props: FieldProps & { choices: Schema[] }) {
  const id = useId();
  const [chosen, setChosen] = useState(() => choiceOf(props.value, props.choices, props.root));
  const choice = props.choices[chosen];
  return (
    <>
      <div class="control">
        <label class="visually-hidden" for={id}>Form of {props.name}</label>
        <select
          id={id}
          value={String(chosen)}
          onChange={(event) => {
            const index = Number(event.currentTarget.value);
            setChosen(index);
            props.onChange(index < 0 ? undefined : initial(props.choices[index], props.root, true));
          }}
        >
          <option value="-1">{props.required ? "choose…" : "left out"}</option>
          {props.choices.map((other, index) => <option key={index} value={String(index)}>{choiceName(other, index, props.root)}</option>)}
        </select>
      </div>
      {choice && <SchemaField {...props} key={chosen} name={`${props.name}: ${choiceName(choice, chosen, props.root)}`} given={choice} required depth={props.depth + 1} remove={undefined} />}
    </>
  );
}

type Control = { id: string; "aria-describedby"?: string; "aria-invalid"?: "true"; "aria-required"?: boolean };

function Scalar(props: FieldProps & { schema: Schema; kind: string; nullable: boolean; control: Control }) {
  const { schema, value, control } = props;
  switch (props.kind) {
    case "const":
      return <code {...{ id: control.id }}>{JSON.stringify(schema.const)}</code>;
    case "null":
      return <code id={control.id}>null</code>;
    case "enum": {
      const options = schema.enum!;
      const index = options.findIndex((option) => JSON.stringify(option) === JSON.stringify(value));
      return (
        <select {...control} value={String(index)} onChange={(event) => props.onChange(options[Number(event.currentTarget.value)])}>
          <option value="-1">{props.required ? "choose…" : "left out"}</option>
          {options.map((option, at) => <option key={at} value={String(at)}>{typeof option === "string" ? option : JSON.stringify(option)}</option>)}
        </select>
      );
    }
    case "boolean":
      return (
        <select {...control} value={value === undefined ? "" : String(value)} onChange={(event) => props.onChange(event.currentTarget.value === "" ? undefined : event.currentTarget.value === "true")}>
          <option value="">{props.required ? "choose…" : "left out"}</option>
          <option value="true">true</option>
          <option value="false">false</option>
        </select>
      );
    case "number":
    case "integer":
      return <NumberInput {...props} />;
    case "string":
      return holdsFile(schema) ? <Base64 {...props} /> : <TextInput {...props} />;
    default:
      return <JsonInput {...props} />;
  }
}

function NumberInput({ value, kind, control, onChange }: FieldProps & { kind: string; control: Control }) {
  const shown = value === undefined || value === null ? "" : String(value);
  const [text, setText] = useState(shown);
  const parsed = text.trim() === "" ? undefined : numberOf(text, kind);
  const current = parsed === undefined ? "" : String(parsed);
  return (
    <input
      {...control}
      class="number"
      inputMode={kind === "integer" ? "numeric" : "decimal"}
      // What is being typed ("1e", "-") stays as it is typed; other changes win.
      value={current === shown ? text : shown}
      onInput={(event) => {
        setText(event.currentTarget.value);
        onChange(event.currentTarget.value.trim() === "" ? undefined : numberOf(event.currentTarget.value, kind));
      }}
    />
  );
}

/** A number, or the text itself where it is none: the check before the call complains. */
function numberOf(text: string, kind: string): Json {
  const number = Number(text);
  if (!Number.isFinite(number) || (kind === "integer" && !Number.isSafeInteger(number))) return text;
  return number;
}

const INPUT_TYPES: Record<string, "date" | "time" | "email" | "url" | "password"> = { date: "date", time: "time", email: "email", uri: "url", password: "password" };

function TextInput({ value, schema, control, onChange, required }: FieldProps & { schema: Schema; control: Control }) {
  const text = typeof value === "string" ? value : "";
  const [long, setLong] = useState(text.includes("\n") || text.length > 80 || (typeof schema.maxLength === "number" && schema.maxLength > 400));
  const changed = (given: string) => onChange(given === "" && !(required && value === "") ? undefined : given);
  if (long) return <textarea {...control} rows={5} value={text} onInput={(event) => changed(event.currentTarget.value)} />;
  return (
    <>
      <input {...control} type={(INPUT_TYPES[schema.format ?? ""] ?? "text") as "text"} value={text} autocomplete="off" spellcheck={false} onInput={(event) => changed(event.currentTarget.value)} />
      {!schema.format && <Button small onClick={() => setLong(true)} label="Several lines">⏎</Button>}
    </>
  );
}

function Base64({ value, name, control, onChange }: FieldProps & { control: Control }) {
  const [file, setFile] = useState("");
  return (
    <div class="file-field">
      <FileInput
        control={control}
        label={`File for ${name}`}
        onFile={async (given) => {
          setFile(`${given.name}, ${size(given.size)}`);
          onChange(base64(new Uint8Array(await given.arrayBuffer())));
        }}
      />
      {typeof value === "string" && (
        <p class="quiet">
          {file || `${size(Math.floor((value.length * 3) / 4))} as base64`}{" "}
          <Button small onClick={() => (setFile(""), onChange(undefined))} label={`Take out the file for ${name}`}>Take out</Button>
        </p>
      )}
    </div>
  );
}

export function base64(bytes: Uint8Array): string {
  let binary = "";
  for (let from = 0; from < bytes.length; from += 0x8000) binary += String.fromCharCode(...bytes.subarray(from, from + 0x8000));
  return btoa(binary);
}

function JsonInput({ value, control, onChange }: FieldProps & { control: Control }) {
  const [text, setText] = useState(value === undefined ? "" : JSON.stringify(value, null, 2));
  const [wrong, setWrong] = useState("");
  return (
    <div class="grow">
      <textarea
        {...control}
        class="code"
        rows={4}
        spellcheck={false}
        value={text}
        placeholder="JSON"
        onInput={(event) => {
          const given = event.currentTarget.value;
          setText(given);
          if (given.trim() === "") return setWrong(""), onChange(undefined);
          try {
            onChange(JSON.parse(given));
            setWrong("");
          } catch (error) {
            setWrong(`Not JSON yet: ${(error as Error).message}`);
          }
        }}
      />
      {wrong && <p class="complaint">{wrong}</p>}
    </div>
  );
}

/** What the form can tell without the server: what is missing, and numbers that are none. */
export function check(given: unknown, root: Schema, value: Json | undefined, required: boolean, path = "", problems: Problems = {}): Problems {
  const { schema, kind, nullable, choices } = describe(given, root);
  if (value === undefined) {
    if (required) problems[path] = "Required.";
    return problems;
  }
  if (value === null && nullable) return problems;
  if (kind === "number" || kind === "integer") {
    if (typeof value !== "number") problems[path] = kind === "integer" ? "A whole number is needed (for one beyond 2⁵³ use raw JSON)." : "A number is needed.";
  } else if (kind === "object" && isObject(value)) {
    for (const name of new Set([...Object.keys(schema.properties ?? {}), ...(schema.required ?? [])])) {
      check(schema.properties?.[name] ?? {}, root, value[name], schema.required?.includes(name) ?? false, `${path}/${name}`, problems);
    }
  } else if (kind === "array" && Array.isArray(value)) {
    value.slice(0, MOST_ITEMS).forEach((item, index) => {
      const items = describe(schema.items, root);
      check(schema.items ?? {}, root, item === null && items.kind !== "any" && items.kind !== "null" && !items.nullable ? undefined : item, true, `${path}/${index}`, problems);
    });
  } else if (kind === "choice") {
    const choice = choiceOf(value, choices, root);
    if (choice >= 0) check(choices[choice], root, value, true, path, problems);
  }
  return problems;
}

