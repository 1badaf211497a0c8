// What the scripts share: where the server is, waiting for a condition, and printing what happened as a line of JSON.
"use strict";
const port = Number(process.argv[2]);
const prefix = process.argv[3] || "";

async function until(what, condition) {
  for (let tries = 0; tries < 400; tries++) {
    if (await condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`not within 20 s: ${what}`);
}

function run(main) {
  main().then(
    (result) => {
      console.log(JSON.stringify(result));
      process.exit(0);
    },
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
}

module.exports = { port, prefix, until, run };
