// A stdio server whose tool wants more of its arguments than the schema says.
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { z } from 'zod';

const server = new McpServer({ name: 'typescript1', version: '1' });
const text = (value) => ({ content: [{ type: 'text', text: String(value) }] });
const even = z.number().refine((number) => number % 2 === 0, 'must be even');
server.registerTool('half', { inputSchema: { number: even } }, async ({ number }) => text(number / 2));
// Answers otherwise than it promises.
server.registerTool('broken', { inputSchema: { number: z.number() }, outputSchema: { half: z.number() } }, async () => ({
  ...text('broken'), structuredContent: { half: 'broken' },
}));
await server.connect(new StdioServerTransport());
