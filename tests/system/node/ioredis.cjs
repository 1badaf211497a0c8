/* ioredis through its usual steps: node ioredis.cjs PORT */
"use strict";
const assert = require("node:assert/strict");
const { once } = require("node:events");
const Redis = require("ioredis");
const { Heard, eventually, run } = require("./conversation.cjs");

run(async (port) => {
  const connect = () => new Redis({ host: "127.0.0.1", port, retryStrategy: () => 20 });
  const publisher = connect();
  const subscriber = connect();
  // A SUBSCRIBE between connecting and the client's own check (INFO) makes that fail, and the client connect anew.
  await Promise.all([once(publisher, "ready"), once(subscriber, "ready")]);
  const heard = new Heard();
  const note = (kind) => (channel, message) => heard.listener(kind)(message, channel);
  subscriber.on("message", note("message"));
  subscriber.on("pmessage", (_pattern, channel, message) => note("pmessage")(channel, message));
  subscriber.on("smessage", note("smessage"));

  // Nobody listens: the reply is the number of receivers, as ever; the next one to subscribe gets the last message.
  assert.equal(await publisher.publish("news:a", "missed"), 0);
  assert.equal(await publisher.publish("news:a", "held"), 0);
  assert.equal(await subscriber.subscribe("news:a", "news:c"), 2);
  await heard.expect("message", [["news:a", "held"]]);
  assert.equal(await publisher.publish("news:a", "live"), 1);
  await heard.expect("message", [["news:a", "held"], ["news:a", "live"]]);

  assert.equal(await publisher.publish("match:1", "held"), 0);
  assert.equal(await subscriber.psubscribe("match:*"), 3);
  await heard.expect("pmessage", [["match:1", "held"]]);
  assert.equal(await publisher.publish("match:2", "live"), 1);
  await heard.expect("pmessage", [["match:1", "held"], ["match:2", "live"]]);

  assert.equal(await publisher.spublish("shard:1", "held"), 0);
  await subscriber.ssubscribe("shard:1");
  await heard.expect("smessage", [["shard:1", "held"]]);
  assert.equal(await publisher.spublish("shard:1", "live"), 1);
  await heard.expect("smessage", [["shard:1", "held"], ["shard:1", "live"]]);

  // A transaction and a pipeline with publishes among other commands, heard and unheard.
  const commands = (batch) =>
    batch.set("key", "value").publish("news:c", "from a batch").publish("news:b", "unheard").get("key");
  const replies = [[null, "OK"], [null, 1], [null, 0], [null, "value"]];
  assert.deepEqual(await commands(publisher.multi()).exec(), replies);
  assert.deepEqual(await commands(publisher.pipeline()).exec(), replies);
  await eventually(() => heard.messages("message").length >= 4, "two messages from batches");
  assert.deepEqual(heard.messages("message").slice(2), Array(2).fill(["news:c", "from a batch"]));
  assert.deepEqual(await publisher.lrange("news:b", 0, -1), ["unheard", "unheard"]);

  // The connection is lost and something is published before it is back: the client subscribes anew and gets it.
  const lost = await publisher.multi().client("KILL", "TYPE", "pubsub").publish("news:c", "while away").exec();
  assert.deepEqual(lost, [[null, 1], [null, 0]]);
  await eventually(
    () => heard.messages("message").some(([channel, message]) => channel === "news:c" && message === "while away"),
    "the message that was published while away",
  );
  await eventually(async () => (await publisher.pubsub("NUMPAT")) === 1, "the pattern subscribed anew");
  assert.equal(await publisher.publish("match:3", "back"), 1);
  await eventually(() => heard.messages("pmessage").some(([channel]) => channel === "match:3"), "match:3");

  // Unsubscribed, the connection is an ordinary one again.
  await subscriber.unsubscribe("news:a", "news:c");
  await subscriber.punsubscribe("match:*");
  await subscriber.sunsubscribe("shard:1");
  assert.equal(await subscriber.publish("news:a", "nobody"), 0);
  assert.equal(await subscriber.ping(), "PONG");
  await subscriber.quit();
  await publisher.quit();
});
