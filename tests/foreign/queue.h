// A queue pair that many lanes share, in the manner of BaM: tickets, a tail that one lane advances for
// all, and completions that one lane drains for all. Written from the NVMe specification.
//
//   ticket -> slot (= command id) -> entry written -> tail, doorbell -> completion -> slot free
//
// Every wait has a deadline; past it the queue counts as broken, and everybody leaves.
//
// Sources: NVMe Base 2.0c, 3.3.1 (queues), 4.1 and 4.2 (entries); NVM Command Set 1.0c, 3.2 (Read, Write).
#pragma once

#include "platform.h"

enum { OPCODE_WRITE = 1, OPCODE_READ = 2 };

// What a lane is told instead of a status.
enum { TIMED_OUT = 0xffff };

// Words of the state, each on a line of its own.
enum { TICKET = 0, TAIL = 32, TAIL_LOCK = 64, SQ_HEAD = 96, HEAD = 128, HEAD_LOCK = 160, BROKEN = 192 };
enum { STATE_WORDS = 224 };

struct Queue {
    u32 *sq;           // 16 words an entry
    const u32 *cq;     // 4 words an entry
    u32 *sq_doorbell;
    u32 *cq_doorbell;
    u32 *state;        // STATE_WORDS, then three words a slot: turn, written, ended
    u32 depth;         // entries of each queue, a power of two
    u32 nsid;
    u32 block_bytes;
};

LANE u32 *turn_of(const Queue &q, u32 slot) { return q.state + STATE_WORDS + slot; }
LANE u32 *written_of(const Queue &q, u32 slot) { return q.state + STATE_WORDS + q.depth + slot; }
LANE u32 *ended_of(const Queue &q, u32 slot) { return q.state + STATE_WORDS + 2 * q.depth + slot; }

// Advances the tail over all entries that are written, as far as the drive has room.
LANE void advance_tail(const Queue &q)
{
    if (swap_if(q.state + TAIL_LOCK, 0, 1) != 0) return;
    fence();
    const u32 before = look(q.state + TAIL);
    u32 tail = before;
    while (look(written_of(q, tail % q.depth)) == tail / q.depth + 1 &&
           tail + 1 - look(q.state + SQ_HEAD) < q.depth)
        ++tail;
    if (tail != before) {
        put(q.state + TAIL, tail);
        fence();  // entries before doorbell
        put(q.sq_doorbell, tail % q.depth);
    }
    fence();
    put(q.state + TAIL_LOCK, 0);
}

// Takes all completions that are there.
LANE void drain(const Queue &q)
{
    if (swap_if(q.state + HEAD_LOCK, 0, 1) != 0) return;
    fence();
    const u32 before = look(q.state + HEAD);
    u32 head = before;
    for (;;) {
        const u32 *entry = q.cq + head % q.depth * 4;
        const u32 last = look(entry + 3);
        const u32 phase = (head / q.depth & 1) ^ 1;
        if ((last >> 16 & 1) != phase) break;
        fence();  // the phase before the rest
        const u32 sq_head = look(entry + 2) & 0xffff;
        const u32 known = look(q.state + SQ_HEAD);
        put(q.state + SQ_HEAD, known + (sq_head - known) % q.depth);
        put(ended_of(q, (last & 0xffff) % q.depth), 0x80000000u | (last >> 17 & 0x7fff));
        ++head;
    }
    if (head != before) {
        put(q.state + HEAD, head);
        fence();  // what was read before the drive may write it again
        put(q.cq_doorbell, head % q.depth);
    }
    fence();
    put(q.state + HEAD_LOCK, 0);
}

// Waits until a word of a slot is as wanted (under a mask); false where the queue is broken.
LANE bool wait_for(const Queue &q, const u32 *word, u32 mask, u32 wanted, u64 deadline_ns)
{
    while ((look(word) & mask) != wanted) {
        if (look(q.state + BROKEN) != 0) return false;
        if (now_ns() > deadline_ns) {
            put(q.state + BROKEN, 1);
            return false;
        }
        advance_tail(q);
        drain(q);
        nap();
    }
    fence();  // what was stored before the word
    return true;
}

// One Read or Write, from submission to its end: the status as the drive gave it.
LANE u32 carry_out(const Queue &q, u32 opcode, u64 offset, u32 bytes, u64 prp1, u64 prp2, u64 limit_ns)
{
    const u64 deadline_ns = now_ns() + limit_ns;
    const u32 ticket = add(q.state + TICKET, 1);
    const u32 slot = ticket % q.depth, turn = ticket / q.depth;
    if (!wait_for(q, turn_of(q, slot), ~0u, turn, deadline_ns)) return TIMED_OUT;
    put(ended_of(q, slot), 0);
    const u64 lba = offset / q.block_bytes;
    const u32 blocks_z = bytes / q.block_bytes - 1;
    const u32 entry[16] = {
        opcode | slot << 16, q.nsid, 0, 0, 0, 0,
        (u32)prp1, (u32)(prp1 >> 32), (u32)prp2, (u32)(prp2 >> 32),
        (u32)lba, (u32)(lba >> 32), blocks_z, 0, 0, 0,
    };
    for (u32 word = 0; word < 16; ++word) put(q.sq + slot * 16 + word, entry[word]);
    fence();  // the entry before its mark
    put(written_of(q, slot), turn + 1);
    if (!wait_for(q, ended_of(q, slot), 0x80000000u, 0x80000000u, deadline_ns)) return TIMED_OUT;
    const u32 status = look(ended_of(q, slot)) & 0x7fff;
    fence();  // all uses of the slot before the next one's
    put(turn_of(q, slot), turn + 1);
    return status;
}
