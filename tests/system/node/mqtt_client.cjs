/* MQTT.js that does what it is told: orders come as JSON lines, one at a time, and so do answers and messages.
 *
 *     {"do": "connect", "port": 1883, ...}   ->   {"done": false}          was the session present?
 *     {"do": "subscribe", "filter": "a"}     ->   {"done": 1}              the QoS granted
 *     {"do": "publish", "message": {...}}    ->   {"done": true}           acknowledged
 *     {"do": "stop"}                         ->   {"done": true}
 *                                                 {"message": {...}}       whenever one comes
 */
"use strict";
const mqtt = require("mqtt");
const readline = require("node:readline");

let client = null;

const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");

function toProperties(given) {
  const properties = {};
  if (given.user.length) {
    properties.userProperties = {};
    for (const [name, value] of given.user) {
      const before = properties.userProperties[name];
      properties.userProperties[name] = before === undefined ? value : [].concat(before, value);
    }
  }
  if (given.content_type) properties.contentType = given.content_type;
  if (given.response_topic) properties.responseTopic = given.response_topic;
  if (given.correlation) properties.correlationData = Buffer.from(given.correlation);
  if (given.expiry_s) properties.messageExpiryInterval = given.expiry_s;
  return properties;
}

function fromProperties(given) {
  const user = [];
  for (const [name, values] of Object.entries(given.userProperties || {})) {
    for (const value of [].concat(values)) user.push([name, value]);
  }
  return {
    user,
    content_type: given.contentType || "",
    response_topic: given.responseTopic || "",
    correlation: (given.correlationData || "").toString(),
    expiry_s: given.messageExpiryInterval || 0,
    identifiers: [].concat(given.subscriptionIdentifier || []),
  };
}

const orders = {
  async connect({ port, clientId, version, clean, sessionExpiry, will }) {
    const options = { host: "127.0.0.1", port, clientId, clean, protocolVersion: version, reconnectPeriod: 0 };
    if (version === 5) options.properties = { sessionExpiryInterval: sessionExpiry };
    if (will) options.will = { topic: will.topic, payload: will.payload, qos: will.qos, retain: will.retain };
    client = mqtt.connect(options);
    client.on("message", (topic, payload, packet) => {
      const properties = fromProperties(packet.properties || {});
      say({ message: { topic, payload: payload.toString(), qos: packet.qos, retain: packet.retain, properties } });
    });
    return new Promise((resolve, reject) => {
      client.once("connect", (connack) => resolve(connack.sessionPresent));
      client.once("error", reject);
    });
  },

  async subscribe({ filter, qos, identifier }) {
    const options = { qos };
    if (identifier) options.properties = { subscriptionIdentifier: identifier };
    const [granted] = await client.subscribeAsync(filter, options);
    return granted.qos;
  },

  async publish({ message }) {
    const options = { qos: message.qos, retain: message.retain };
    if (client.options.protocolVersion === 5) options.properties = toProperties(message.properties);
    await client.publishAsync(message.topic, message.payload, options);
    return true;
  },

  async stop() {
    await client.endAsync();
    return true;
  },
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const { do: what, ...order } = JSON.parse(line);
  orders[what](order).then(
    (done) => say({ done }),
    (error) => say({ error: String(error) }),
  );
});
