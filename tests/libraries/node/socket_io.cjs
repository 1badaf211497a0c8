// Two servers of Socket.IO with the Redis adapter, a client at each, an emitter: socket_io.cjs PORT [KEY].
"use strict";
const { createServer } = require("http");
const { Server } = require("socket.io");
const { io } = require("socket.io-client");
const { createAdapter } = require("@socket.io/redis-adapter");
const { Emitter } = require("@socket.io/redis-emitter");
const Redis = require("ioredis");
const { port, prefix, until, run } = require("./talk.cjs");

run(async () => {
  const connections = [];
  const connect = () => connections[connections.push(new Redis(port)) - 1];
  const key = prefix ? { key: prefix } : {};
  const heard = [];
  // What is sent while no server is there is lost, and has to stay so.
  const outside = connect();
  const emitter = new Emitter(outside, key);
  emitter.emit("news", "before");
  emitter.to("room").emit("news", "before, in the room");
  await outside.ping();
  const servers = [];
  for (const name of ["a", "b"]) {
    const server = new Server(createServer().listen(0), { adapter: createAdapter(connect(), connect(), key) });
    server.on("connection", (socket) => socket.join("room"));
    servers.push(server);
    await until("a port", () => server.httpServer.address() !== null);
    const client = io(`http://127.0.0.1:${server.httpServer.address().port}`, { transports: ["websocket"] });
    client.on("news", (text) => heard.push(`${name}: ${text}`));
    await until("a connection", () => client.connected);
    connections.push({ disconnect: () => client.close() });
  }
  await until("both in the room", async () => (await servers[0].in("room").fetchSockets()).length === 2);
  servers[0].emit("news", "to all");
  servers[1].to("room").emit("news", "to the room");
  emitter.emit("news", "from outside");
  await until("six messages", () => heard.length >= 6);
  const sockets = (await servers[1].fetchSockets()).length;
  for (const connection of connections) if (!(connection instanceof Redis)) connection.disconnect();
  for (const server of servers) server.close();
  for (const connection of connections) connection.disconnect();
  return { heard: heard.sort(), sockets };
});
