// Colours for Python, JSON, YAML and TOML, line by line. It reads tokens, not grammar: a wrong colour is the worst it can do.

export type Language = "python" | "json" | "yaml" | "toml" | "text";
/** A piece of a line and its class; "" is plain text. */
export type Token = [kind: "" | "k" | "s" | "n" | "c" | "f" | "d" | "p", text: string];
/** What goes on from one line into the next: the quotes of an open string. */
export type LineState = "" | '"""' | "'''";

export function languageOf(filename: string): Language {
  const ending = filename.toLowerCase().split(".").pop();
  if (ending === "py") return "python";
  if (ending === "json") return "json";
  if (ending === "yaml" || ending === "yml") return "yaml";
  return ending === "toml" ? "toml" : "text";
}

const PYTHON =
  /(?<c>#.*)|(?<s>(?:\b[rRbBuUfFtT]{1,2})?(?:"""|'''|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?))|(?<d>@[\w.]+)|(?<n>\b(?:0[xXoObB][\da-fA-F_]+|\d[\d_]*(?:\.[\d_]*)?(?:[eE][+-]?\d+)?j?)\b)|(?<w>[^\W\d]\w*)/gu;
const PYTHON_WORDS = new Set(
  "False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try type while with yield".split(" "),
);
const PYTHON_NAMES = new Set(
  "str int float bool bytes list dict set tuple object len range print isinstance sorted enumerate zip open super Exception ValueError TypeError KeyError RuntimeError self cls".split(" "),
);
const JSON_TOKENS = /(?<p>"(?:\\.|[^"\\])*"(?=\s*:))|(?<s>"(?:\\.|[^"\\])*"?)|(?<n>-?\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b)|(?<k>\b(?:true|false|null)\b)/g;
const YAML_TOKENS = /(?<c>(?<=^|\s)#.*)|(?<p>^\s*(?:- )*[\w."'/-]+(?=\s*:(?:\s|$)))|(?<s>"(?:\\.|[^"\\])*"?|'[^']*'?)|(?<n>(?<=[\s:[,])-?\d+(?:\.\d+)?(?=[\s,\]]|$))|(?<k>\b(?:true|false|null|yes|no)\b)/g;
const TOML_TOKENS = /(?<c>#.*)|(?<d>^\s*\[+[^\]]*\]+)|(?<p>^\s*[\w."'-]+(?=\s*=))|(?<s>"""|'''|"(?:\\.|[^"\\])*"?|'[^']*'?)|(?<n>-?\b\d[\d_.:TZ-]*\b)|(?<k>\b(?:true|false)\b)/g;

/** A line longer than this is shown without colours. */
const LONGEST_LINE = 2000;

export function tokenize(line: string, language: Language, before: LineState): { tokens: Token[]; after: LineState } {
  if (language === "text" || line.length > LONGEST_LINE) return { tokens: [["", line]], after: before };
  const tokens: Token[] = [];
  let state = before;
  let from = 0;
  if (state) {
    const end = line.indexOf(state);
    if (end < 0) return { tokens: [["s", line]], after: state };
    from = end + 3;
    tokens.push(["s", line.slice(0, from)]);
    state = "";
  }
  const pattern = { python: PYTHON, json: JSON_TOKENS, yaml: YAML_TOKENS, toml: TOML_TOKENS }[language];
  pattern.lastIndex = from;
  let previous = "";
  for (let match = pattern.exec(line); match; match = pattern.exec(line)) {
    if (match[0] === "") {
      pattern.lastIndex += 1;
      continue;
    }
    if (match.index > from) tokens.push(["", line.slice(from, match.index)]);
    let [text] = match;
    let kind = Object.entries(match.groups!).find(([, value]) => value !== undefined)![0];
    if (kind === "s" && /("""|''')$/.test(text)) {
      const quotes = text.slice(-3) as LineState;
      const end = line.indexOf(quotes, pattern.lastIndex);
      text = line.slice(match.index, end < 0 ? line.length : end + 3);
      if (end < 0) state = quotes;
      pattern.lastIndex = match.index + text.length;
    }
    if (kind === "w") {
      kind = previous === "def" || previous === "class" ? "f" : PYTHON_WORDS.has(text) ? "k" : PYTHON_NAMES.has(text) ? "p" : "";
      previous = text;
    }
    tokens.push([kind as Token[0], text]);
    from = match.index + text.length;
  }
  if (from < line.length) tokens.push(["", line.slice(from)]);
  return { tokens, after: state };
}
