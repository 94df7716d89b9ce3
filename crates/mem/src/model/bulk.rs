//! Copies: many words at once, of any alignment.

use super::buffers::{AgentId, Entry};
use super::machine::{Model, Order, word_of};

/// The bits of a word that bytes `from..to` cover.
fn mask(from: usize, to: usize) -> u64 {
    let below = |bytes: usize| if bytes == 8 { u64::MAX } else { (1 << (bytes * 8)) - 1 };
    below(to) & !below(from)
}

impl Model {
    /// Copies bytes out of memory as an agent sees it; `false` where they are not registered.
    pub fn read_bytes(&mut self, agent: AgentId, address: u64, target: &mut [u8]) -> bool {
        let Some((region, start)) = self.space.find(address, target.len()) else { return false };
        self.finish_copies(agent);
        self.step();
        // One draw for the whole copy; which old value is then drawn a word.
        let adverse = self.draws_stale();
        let mut done = 0;
        while done < target.len() {
            let offset = start + done;
            let word = word_of(region, offset);
            let within = offset % 8;
            let count = (8 - within).min(target.len() - done);
            let moment = if adverse {
                self.moment(agent, word, false, Order::Relaxed)
            } else {
                self.space.now
            };
            let value = self.load_word(agent, word, moment, Order::Relaxed);
            let bytes = value.to_le_bytes();
            target[done..done + count].copy_from_slice(&bytes[within..within + count]);
            self.note_access(agent, 0, word, [value, 0]);
            done += count;
        }
        true
    }

    /// Copies bytes into memory; `false` where they are not registered.
    pub fn write_bytes(&mut self, agent: AgentId, address: u64, source: &[u8]) -> bool {
        let Some((region, start)) = self.space.find(address, source.len()) else { return false };
        self.finish_copies(agent);
        self.step();
        let window = self.combines(agent, region);
        let mut done = 0;
        while done < source.len() {
            let offset = start + done;
            let word = word_of(region, offset);
            let within = offset % 8;
            let count = (8 - within).min(source.len() - done);
            let mut bytes = [0; 8];
            bytes[within..within + count].copy_from_slice(&source[done..done + count]);
            let value = u64::from_le_bytes(bytes);
            self.note_access(agent, 1, word, [value, 0]);
            let entry = Entry::single(word, value, mask(within, within + count), agent);
            self.push(agent, entry, window);
            done += count;
        }
        true
    }
}
