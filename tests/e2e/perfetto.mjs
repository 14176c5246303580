// Reads a trace with Perfetto's own importer, trace_processor as WebAssembly, and prints what it found as one JSON object.
// Usage: node perfetto.mjs FOLDER TRACE. FOLDER has trace_processor.wasm, engine_bundle.node.js and engine.mjs, its client.

import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { runInThisContext } from "node:vm";

const [folder, trace] = process.argv.slice(2, 4).map((path) => resolve(path));
const { EngineBase } = await import(pathToFileURL(join(folder, "engine.mjs")));

// Progress messages are not part of the output.
console.log = console.warn = () => {};

// The bundle expects a browser's worker; these globals are all that it uses.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = { href: "http://localhost/" };
globalThis.XMLHttpRequest = class {
    open(_method, url) {
        this.file = url.split("/").at(-1);
    }
    send() {
        this.response = readFileSync(join(folder, this.file));
    }
};
// It first creates a module to test for 64-bit addresses. The 64-bit program is not installed, so that test has to fail.
const { Module } = WebAssembly;
WebAssembly.Module = function () {
    WebAssembly.Module = Module;
    throw new Error("32 bits only");
};
runInThisContext(readFileSync(join(folder, "engine_bundle.node.js"), "utf8"));
// Lets the pending callbacks run.
await new Promise(setImmediate);

class Engine extends EngineBase {
    mode = "WASM";
    id = "trace_processor";
    port = { postMessage: (reply) => this.onRpcResponseBytes(reply) };
    rpcSendRequestBytes(request) {
        this.port.onmessage({ data: request });
    }
}
const engine = new Engine();
globalThis.onmessage({ data: engine.port });
await engine.parse(readFileSync(trace));
await engine.notifyEof();

async function rows(sql) {
    const result = await engine.query(sql);
    const [columns, found] = [result.columns(), []];
    for (const row = result.iter({}); row.valid(); row.next()) {
        found.push(columns.map((name) => row.get(name)));
    }
    return found;
}

const answer = {
    faults: await rows("select name, ifnull(idx, 0), value from stats where severity in ('error', 'data_loss') and value != 0"),
    slices: await rows(`select pid, tid, slice.name, category, ts, dur from slice
        join thread_track on thread_track.id = track_id join thread using (utid) join process using (upid)`),
    arrows: await rows(`select a.ts, b.ts, a.name, b.category from flow
        join slice a on a.id = slice_out join slice b on b.id = slice_in`),
    processes: await rows("select pid, name from process where name is not null"),
    threads: await rows("select pid, tid, thread.name from thread join process using (upid) where thread.name is not null"),
};
process.stdout.write(JSON.stringify(answer, (_, value) => (typeof value === "bigint" ? Number(value) : value)));
