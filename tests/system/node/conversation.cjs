/* What each conversation with a Node.js client needs: what was heard, in order, and waiting for it with a bound. */
"use strict";
const assert = require("node:assert/strict");

const WAIT_MS = 15000;
const POLL_MS = 5;

/* Everything that the listeners of one connection heard, as [kind, channel, message]. */
class Heard {
  constructor() {
    this.all = [];
  }

  /* A listener that notes what it hears as `kind`. */
  listener(kind) {
    return (message, channel) => this.all.push([kind, String(channel), String(message)]);
  }

  messages(kind) {
    return this.all.filter((entry) => entry[0] === kind).map((entry) => entry.slice(1));
  }

  /* Wait until `kind` was heard as often as expected, and check that it is exactly that. */
  async expect(kind, expected) {
    await eventually(() => this.messages(kind).length >= expected.length, `${kind}: ${JSON.stringify(expected)}`);
    assert.deepEqual(this.messages(kind), expected);
  }
}

async function eventually(condition, what) {
  const deadline = Date.now() + WAIT_MS;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`did not come true within ${WAIT_MS} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/* Run a conversation; the process ends with status 0 only if it went through. */
function run(conversation) {
  conversation(Number(process.argv[2]), process.argv.slice(3)).then(
    () => {
      console.log("done");
      process.exit(0);
    },
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}

module.exports = { Heard, eventually, run };
