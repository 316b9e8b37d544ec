// What people type for a process: a command line, and variables of its environment.

/** A command line into words: quotes as in a shell, nothing else of a shell. */
export function parseWords(line: string): { all: string[]; wrong?: string } {
  const all: string[] = [];
  let word: string | null = null;
  let quote = "";
  for (let at = 0; at < line.length; at += 1) {
    const letter = line[at];
    if (quote) {
      if (letter === quote) quote = "";
      else if (letter === "\\" && quote === '"' && (line[at + 1] === '"' || line[at + 1] === "\\")) word += line[(at += 1)];
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      word ??= "";
    } else if (letter === "\\" && at + 1 < line.length) word = (word ?? "") + line[(at += 1)];
    else if (/\s/.test(letter)) {
      if (word !== null) all.push(word);
      word = null;
    } else word = (word ?? "") + letter;
  }
  if (word !== null) all.push(word);
  return quote ? { all, wrong: `A ${quote} is not closed.` } : { all };
}

export function parseVariables(text: string): { all: Record<string, string>; wrong?: string } {
  const all: Record<string, string> = {};
  for (const [index, line] of text.split("\n").entries()) {
    if (!line.trim()) continue;
    const match = /^\s*([A-Za-z_]\w*)=(.*)$/.exec(line);
    if (!match) return { all, wrong: `Line ${index + 1} is not NAME=value.` };
    all[match[1]] = match[2];
  }
  return { all };
}

/** Names separated by spaces, commas or lines. */
export function parseList(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}
