#!/bin/bash
# Measures the ring on a real GPU: scripts/gpu.sh BINARY RESULTS.jsonl
# Needs NVIDIA's driver, NVRTC 12.3 or newer, and for the window a Vulkan loader, libglvnd and libX11.
# Build here (cargo build --release -p sidecore-cli), carry target/release/sidecore and this file.
# Rows `push` compare every write from the file one by one, which takes minutes.
nvidia-smi -L
S=${1:?the binary}
RESULTS=${2:?where the rows go}
B="$S bench --json --dir /dev/shm --io-size 4k --gpu 0"
: > /tmp/all.jsonl
row() { local n=$1; shift; local t0=$SECONDS; timeout 90 "$@" >/tmp/o 2>/tmp/e; local rc=$?; python3 - "$n" $rc $((SECONDS-t0)) <<'P'
import json,sys
n,rc,w=sys.argv[1:4]; e=open('/tmp/e').read().strip()
o=open('/tmp/o').read()
f=open('/tmp/all.jsonl','a')
for l in o.splitlines():
    try: r=json.loads(l)
    except Exception: print(n,l[:200]); continue
    r['row']=n; f.write(json.dumps(r)+'\n')
    if 'what' in r: print(f"{r['what']} {r['n']} {r['bytes_per_s']/1e9:.2f}", end='; '); continue
    print(f"{n}: rc={rc} gpu={r['gpu']} {r['route']} ios={r['ios']} ver={r['ios_verified']} edges={r.get('edges_verified',r.get('ios_edges'))} err={r['errors']} Miops={r['iops']/1e6:.3f} GB/s={r['bytes_per_s']/1e9:.2f} p50={r['latency_ns_p50']} p99={r['latency_ns_p99']} cpu={r['cpu_path_s']:.2f}/{r['seconds']:.2f}s wall={w}")
if e or not o: print(n,'rc',rc,'stderr:',e[:700])
P
}
Q="--path ring --size 64M --ios 20000 --repeats 1 --sms 4 --warps 2 --side-cores 4"
row v-window $B $Q --batch 8
row v-pull $B $Q --route pull
row v-bounce env CUDA_MODULE_LOADING=LAZY $B $Q --route bounce
row v-push $B $Q --op write --drive mapped
row v-mix $B $Q --op mix --route bounce
row v-lost $B $Q --faults lost:n=20 --limit-ms 300
row v-novk env VK_DRIVER_FILES=/nonexistent $B $Q --route pull
row gpu1 $S bench --gpu 1 --path posix
row ceiling $S bench window --json --gpu 0
echo
R="--path ring --size 2G --repeats ${REP:-5} --verify edges"
P="$R --destination 4G --duration 1s"
L="$R --destination 64M --duration 500ms --sms 1 --warps 1 --batch 1 --queues 1 --side-cores 1"
W4="--sms 4 --warps 1 --batch 8 --queues 4 --side-cores 4"
W8="--sms 4 --warps 2 --batch 8 --queues 8 --side-cores 8"
row window-memory-4 $B $P --drive memory $W4
row window-mapped-4 $B $P --drive mapped $W4
row window-memory-8 $B $P --drive memory --sms 8 --warps 1 --batch 8 --queues 8 --side-cores 8
row window-mapped-8 $B $P --drive mapped --sms 8 --warps 1 --batch 8 --queues 8 --side-cores 8
row window-file-4 $B $P --drive file $W4
row window-file-8 $B $P --drive file --sms 8 --warps 1 --batch 8 --queues 8 --side-cores 8
row pull-memory-8 $B $P --drive memory --route pull --sms 16 --warps 8 --batch 1 --queues 8 --side-cores 8
row pull-memory-12 $B $P --drive memory --route pull --sms 16 --warps 4 --batch 1 --queues 16 --side-cores 12
row push-mapped-8 $B $R --destination 512M --duration 300ms --drive mapped --op write --sms 16 --warps 8 --batch 1 --queues 8 --side-cores 8
row latency-memory $B $L --drive memory
row latency-file $B $L --drive file
row full-window-memory-4 $B --path ring --size 1G --repeats 3 --destination 256M --duration 100ms --drive memory $W4
row ceiling2 $S bench window --json --gpu 0
cp /tmp/all.jsonl "$RESULTS"
