// Requests and events over the Redis transport of NestJS: nestjs.cjs PORT.
"use strict";
require("reflect-metadata");
const { Logger } = require("@nestjs/common");
const { ClientProxyFactory, ServerRedis, Transport } = require("@nestjs/microservices");
const { firstValueFrom } = require("rxjs");
const { port, until, run } = require("./talk.cjs");

run(async () => {
  Logger.overrideLogger(false);
  const heard = [];
  const server = new ServerRedis({ host: "127.0.0.1", port });
  server.addHandler("sum", async (data) => data.a + data.b, false);
  server.addHandler("told", async (data) => heard.push(data), true);
  await new Promise((resolve, reject) => server.listen((error) => (error ? reject(error) : resolve())));
  const client = ClientProxyFactory.create({ transport: Transport.REDIS, options: { host: "127.0.0.1", port } });
  await client.connect();
  const sums = [];
  for (const b of [1, 2, 3]) sums.push(await firstValueFrom(client.send("sum", { a: 1, b })));
  await firstValueFrom(client.emit("told", 1), { defaultValue: null });
  await until("the event", () => heard.length === 1);
  await client.close();
  await server.close();
  return { sums, heard };
});
