// Vercel's ai against a server: node vercel.mjs BASE_URL NODE_MODULES MODEL; prints one JSON object.
const [baseURL, modules, name] = process.argv.slice(2);
const { createOpenAICompatible } = await import(`${modules}/@ai-sdk/openai-compatible/dist/index.mjs`);
const { generateObject, generateText, streamText, tool } = await import(`${modules}/ai/dist/index.mjs`);
const { z } = await import(`${modules}/zod/index.js`);
const provider = createOpenAICompatible({ name: "mxspec", baseURL, apiKey: "none", supportsStructuredOutputs: true });
const asked = { model: provider(name), maxOutputTokens: 60, temperature: 0, maxRetries: 0 };
const prompt = "What is the capital of France?";
const cities = z.object({ city: z.enum(["Paris", "Rome"]) });

const whole = await generateText({ ...asked, prompt });
let streamed = "";
for await (const piece of streamText({ ...asked, prompt }).textStream) streamed += piece;
const { object } = await generateObject({ ...asked, prompt, schema: cities });
const weather = tool({ description: "weather of a city", inputSchema: cities, execute: ({ city }) => `sun in ${city}` });
const called = await generateText({
  ...asked,
  prompt: "What is the weather in Paris?",
  tools: { weather },
  toolChoice: "required",
});
console.log(
  JSON.stringify({
    whole: whole.text,
    streamed,
    tokens: whole.usage.outputTokens,
    reason: whole.finishReason,
    object,
    calls: called.toolCalls.map((call) => [call.toolName, call.input.city]),
    results: called.toolResults.map((result) => result.output),
  }),
);
