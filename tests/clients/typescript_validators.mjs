// The validators of both generations of the TypeScript SDK, made as their clients make them.
// Reads one JSON line `{"schema": …, "value": …}` after another; answers each with a JSON line: an object that says per
// generation what is wrong, empty where nothing is.

import { createInterface } from 'node:readline';

import { AjvJsonSchemaValidator as Second } from '@modelcontextprotocol/client/validators/ajv';
import { AjvJsonSchemaValidator as First } from '@modelcontextprotocol/sdk/validation/ajv';

const generations = { '1.x': new First(), '2.x': new Second() };
// Compiling takes far longer than validating, and many values come for one schema.
const compiled = new Map();

function validatorsOf(schema) {
  const key = JSON.stringify(schema);
  if (!compiled.has(key)) {
    compiled.set(key, Object.entries(generations).map(([name, sdk]) => [name, sdk.getValidator(schema)]));
  }
  return compiled.get(key);
}

for await (const line of createInterface({ input: process.stdin })) {
  const { schema, value } = JSON.parse(line);
  const wrong = {};
  try {
    for (const [name, validate] of validatorsOf(schema)) {
      const { valid, errorMessage } = validate(value);
      if (!valid) wrong[name] = errorMessage;
    }
  } catch (error) {
    // A schema that cannot be compiled: the client would throw.
    wrong.schema = String(error);
  }
  process.stdout.write(`${JSON.stringify(wrong)}\n`);
}
