// Perfetto's trace processor (the WebAssembly that its UI runs) behind a pipe: frames of a length in
// 32 bits and a TraceProcessorRpcStream come in on stdin, answers go out on stdout.
import fs from 'fs';
import path from 'path';
import vm from 'vm';

const folder = process.argv[2];
const host = process;
const read = (url) => fs.readFileSync(path.join(folder, path.basename(String(url))));

// What the engine expects of a browser's worker.
globalThis.self = globalThis;
globalThis.location = { href: 'file:///' };
globalThis.WorkerGlobalScope = function () {};
globalThis.XMLHttpRequest = class {
  open(_, url) { this.url = url; }
  send() { this.response = new Uint8Array(read(this.url)).buffer; }
};
console.log = console.error = (...words) => host.stderr.write(words.join(' ') + '\n');
Object.defineProperty(globalThis, 'process', { value: undefined, configurable: true });
vm.runInThisContext(read('engine_bundle.js').toString(), { filename: 'engine_bundle.js' });

const { port1, port2 } = new MessageChannel();
port1.onmessage = (event) => {
  const body = Buffer.from(event.data), head = Buffer.alloc(4);
  head.writeUInt32LE(body.length);
  fs.writeSync(1, Buffer.concat([head, body]));
};
self.onmessage({ data: port2 });

let waiting = Buffer.alloc(0);
setTimeout(() => host.stdin.on('data', (more) => {
  waiting = Buffer.concat([waiting, more]);
  while (waiting.length >= 4 && waiting.length >= 4 + waiting.readUInt32LE(0)) {
    const end = 4 + waiting.readUInt32LE(0);
    port1.postMessage(new Uint8Array(waiting.subarray(4, end)));
    waiting = waiting.subarray(end);
  }
}).on('end', () => host.exit(0)), 200);
