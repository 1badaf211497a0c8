/* MQTT.js clients at their default options, which answer what they are asked and come back by themselves, or not.
 *
 *     node mqtt_comeback.cjs PORT
 *     {"join": ["a", "b"], "version": 4}    clients that answer on answer/<id> what comes on ask/<id>
 *     {"publish": ["a"]}                    a message of QoS 1 on kept/<id>
 */
"use strict";
const mqtt = require("mqtt");
const readline = require("node:readline");

const port = Number(process.argv[2]);
const clients = new Map();

function join(clientId, protocolVersion) {
  const client = mqtt.connect({ host: "127.0.0.1", port, clientId, protocolVersion });
  clients.set(clientId, client);
  client.on("connect", () => client.subscribe(`ask/${clientId}`, { qos: 1 }));
  client.on("message", (topic, payload) => client.publish(`answer/${clientId}`, payload, { qos: 1 }));
  client.on("error", (error) => console.error(`${clientId}: ${error}`));
}

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const order = JSON.parse(line);
  for (const id of order.join || []) join(id, order.version);
  for (const id of order.publish || []) clients.get(id).publish(`kept/${id}`, id, { qos: 1 });
});
process.stdin.on("end", () => process.exit(0));
