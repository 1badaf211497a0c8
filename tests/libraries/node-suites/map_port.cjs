// Loaded before a suite and before each process that it starts: leads connections to the standard port, which the suites
// have in many places, to the server under test, SUITE_PORT.  Only for this host; other addresses are meant not to answer.
"use strict";
const net = require("net");
const STANDARD_PORT = 6379;
const HOST = "127.0.0.1";
const port = Number(process.env.SUITE_PORT);
const isThisHost = (host) => [undefined, null, "", "localhost", HOST, "::1"].includes(host);

// The words of a call: connect(options[, listener]) or connect(port[, host][, listener]); net.connect passes them in a list.
function target(words) {
  if (typeof words[0] === "object" && words[0] !== null) return words[0];
  return { port: words[0], host: typeof words[1] === "string" ? words[1] : undefined };
}

const connect = net.Socket.prototype.connect;
net.Socket.prototype.connect = function (...given) {
  const words = Array.isArray(given[0]) ? given[0] : given;
  const options = target(words);
  if (Number(options.port) !== STANDARD_PORT || options.path || !isThisHost(options.host)) return connect.apply(this, given);
  const listener = words.find((word) => typeof word === "function");
  return connect.call(this, { ...options, host: HOST, port }, ...(listener ? [listener] : []));
};

// The name that Node.js had for it when these suites were written.
global.GLOBAL = global;
