/* node-redis through its usual steps: node node_redis.cjs PORT RESP */
"use strict";
const assert = require("node:assert/strict");
const { createClient } = require("redis");
const { Heard, eventually, run } = require("./conversation.cjs");

run(async (port, [resp]) => {
  const connect = async () => {
    const client = createClient({ socket: { host: "127.0.0.1", port, reconnectStrategy: 20 }, RESP: Number(resp) });
    client.on("error", () => {}); // a connection that is killed below; what matters is whether it comes back
    return client.connect();
  };
  const publisher = await connect();
  const subscriber = await connect();
  const heard = new Heard();

  // Nobody listens: the reply is the number of receivers, as ever; the next one to subscribe gets the last message.
  assert.equal(await publisher.publish("news:a", "missed"), 0);
  assert.equal(await publisher.publish("news:a", "held"), 0);
  await subscriber.subscribe("news:a", heard.listener("message"));
  await heard.expect("message", [["news:a", "held"]]);
  assert.equal(await publisher.publish("news:a", "live"), 1);
  await heard.expect("message", [["news:a", "held"], ["news:a", "live"]]);

  assert.equal(await publisher.publish("match:1", "held"), 0);
  await subscriber.pSubscribe("match:*", heard.listener("pmessage"));
  await heard.expect("pmessage", [["match:1", "held"]]);
  assert.equal(await publisher.publish("match:2", "live"), 1);
  await heard.expect("pmessage", [["match:1", "held"], ["match:2", "live"]]);

  assert.equal(await publisher.sPublish("shard:1", "held"), 0);
  await subscriber.sSubscribe("shard:1", heard.listener("smessage"));
  await heard.expect("smessage", [["shard:1", "held"]]);
  assert.equal(await publisher.sPublish("shard:1", "live"), 1);
  await heard.expect("smessage", [["shard:1", "held"], ["shard:1", "live"]]);

  // A transaction with publishes among other commands, heard and unheard.
  const replies = await publisher
    .multi()
    .set("key", "value")
    .publish("news:a", "from a transaction")
    .publish("news:b", "unheard")
    .get("key")
    .exec();
  assert.deepEqual(replies, ["OK", 1, 0, "value"]);
  await heard.expect("message", [["news:a", "held"], ["news:a", "live"], ["news:a", "from a transaction"]]);
  assert.deepEqual(await publisher.lRange("news:b", 0, -1), ["unheard"]);

  // The connection is lost and something is published before it is back: the client subscribes anew and gets it.
  const lost = publisher.multi().addCommand(["CLIENT", "KILL", "TYPE", "pubsub"]).publish("news:a", "while away");
  assert.deepEqual(await lost.exec(), [1, 0]);
  await eventually(() => heard.messages("message").length > 3, "the message that was published while away");
  assert.deepEqual(heard.messages("message").slice(3), [["news:a", "while away"]]);
  await eventually(async () => (await publisher.pubSubNumPat()) === 1, "the pattern subscribed anew");
  assert.equal(await publisher.publish("match:3", "back"), 1);
  await eventually(() => heard.messages("pmessage").some(([channel]) => channel === "match:3"), "match:3");

  // Unsubscribed, the connection is an ordinary one again.
  await subscriber.unsubscribe("news:a");
  await subscriber.pUnsubscribe("match:*");
  await subscriber.sUnsubscribe("shard:1");
  assert.equal(await subscriber.publish("news:a", "nobody"), 0);
  assert.equal(String(await subscriber.ping()), "PONG");
  await subscriber.close();
  await publisher.close();
});
