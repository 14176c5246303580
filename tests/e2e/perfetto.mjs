// Opens a trace with Perfetto's own importer, trace_processor as WebAssembly, and tells what it found as one JSON object.
// node perfetto.mjs FOLDER TRACE; FOLDER holds trace_processor.wasm, engine_bundle.node.js and engine.mjs, which talks to it.

import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { runInThisContext } from "node:vm";

const [folder, trace] = process.argv.slice(2, 4).map((path) => resolve(path));
const { EngineBase } = await import(pathToFileURL(join(folder, "engine.mjs")));

// What it says of its own progress is no part of the answer.
console.log = console.warn = () => {};

// It is made for a browser's worker: this is all that it wants of one.
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
// The first module that it makes is to learn whether addresses can have 64 bits; the program for that is not here.
const { Module } = WebAssembly;
WebAssembly.Module = function () {
    WebAssembly.Module = Module;
    throw new Error("32 bits only");
};
runInThisContext(readFileSync(join(folder, "engine_bundle.node.js"), "utf8"));
// What it has begun by then is done.
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
