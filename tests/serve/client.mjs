// openai-node against a server: node client.mjs BASE_URL NODE_MODULES; prints one JSON object.
let doing = "openai-node";  // said where node gives up (code 13: it waits for what nothing can settle any more)
process.on("exit", (code) => code && console.error(`exit ${code} while it read: ${doing}`));
const { default: OpenAI } = await import(`${process.argv[3]}/openai/index.mjs`);
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const chat = { model: "tiny", messages: [{ role: "user", content: "say so" }], max_tokens: 20, temperature: 0 };

doing = "a whole answer";
const whole = await client.chat.completions.create(chat);
doing = "a stream";
let streamed = "";
let usage = null;
const stream = await client.chat.completions.create({ ...chat, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
doing = "the helper's stream";
const helper = client.chat.completions.stream(chat);  // checks that chunks add up to a message
const helped = await helper.finalChatCompletion();
doing = "a completion";
const completion = await client.completions.create({ model: "tiny", prompt: "a text", max_tokens: 9, temperature: 0 });
doing = "a stream that it leaves";
let left = 0;
const cut = await client.completions.create({ model: "tiny", prompt: "a", max_tokens: 80, stream: true });
for await (const _ of cut) {
  if (++left === 3) break;  // which aborts the request
}
doing = "a refusal";
let refused = null;
try {
  await client.chat.completions.create({ ...chat, store: true });
} catch (error) {
  refused = { status: error.status, param: error.param, name: error.constructor.name };
}
doing = "the models";
const models = [];
for await (const model of client.models.list()) models.push(model.id);
console.log(
  JSON.stringify({
    whole: whole.choices[0].message.content,
    streamed,
    helped: helped.choices[0].message.content,
    usage,
    wholeUsage: whole.usage,
    completion: completion.choices[0].text,
    left,
    refused,
    models,
  }),
);
