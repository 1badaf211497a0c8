// Calls and events between two nodes of Moleculer: moleculer.cjs PORT [NAMESPACE].
"use strict";
const { ServiceBroker } = require("moleculer");
const { port, prefix, until, run } = require("./talk.cjs");

run(async () => {
  const heard = [];
  const node = (nodeID) =>
    new ServiceBroker({ nodeID: `${nodeID}-${process.pid}`, logger: false, namespace: prefix, transporter: `redis://127.0.0.1:${port}` });
  const caller = node("caller");
  const server = node("server");
  server.createService({
    name: "math",
    actions: { add: (context) => context.params.a + context.params.b },
    events: { "user.*": (context) => heard.push(context.eventName) },
  });
  await caller.start();
  await server.start();
  await caller.waitForServices("math", 15000);
  const sums = [];
  for (const b of [1, 2, 3]) sums.push(await caller.call("math.add", { a: 1, b }));
  caller.emit("user.created", {});
  caller.broadcast("user.removed", {});
  await until("both events", () => heard.length === 2);
  const nodes = (await caller.registry.getNodeList({ onlyAvailable: true })).length;
  await server.stop();
  await caller.stop();
  return { sums, heard: heard.sort(), nodes };
});
