//! Completion words that wait for the end of a step, so that they leave together and in order.

use abi::ring::CompletionRecord;

/// A completion word that is ready to go out.
#[derive(Clone, Copy)]
pub(super) struct Done {
    pub word: CompletionRecord,
    pub record: u32,
    /// Whether the record was claimed and must be given back.
    pub claimed: bool,
    /// Whether its payload is where its source lends it, else it is in staging.
    pub lent: bool,
    /// Bytes of payload to be stored through the window before the word.
    pub payload: u32,
}

impl Done {
    /// A word without payload.
    #[inline]
    pub const fn new(record: u32, claimed: bool, word: CompletionRecord) -> Self {
        Self { word, record, claimed, lent: false, payload: 0 }
    }
}

/// The words of one step. It has room for all that a step can end.
pub(super) struct Outbox {
    places: Box<[Done]>,
    len: usize,
    /// Whether some word has a payload before it.
    carries: bool,
}

impl Outbox {
    pub fn new(room: usize) -> Self {
        let nothing = Done::new(0, false, CompletionRecord { word: 0 });
        Self { places: vec![nothing; room].into_boxed_slice(), len: 0, carries: false }
    }

    /// # Panics
    /// Where a step ends more requests than there are records, and refusals than it can fetch.
    #[inline]
    pub fn push(&mut self, done: Done) {
        self.places[self.len] = done;
        self.len += 1;
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Has the window carry a payload before the last word.
    #[inline]
    pub fn carry(&mut self, payload: u32, lent: bool) {
        if let Some(done) = self.places[..self.len].last_mut() {
            (done.payload, done.lent) = (payload, lent);
            self.carries = true;
        }
    }

    /// Whether some word has a payload before it.
    #[inline]
    pub fn carries(&self) -> bool {
        self.carries
    }

    /// All words.
    pub fn all(&self) -> &[Done] {
        &self.places[..self.len]
    }

    /// Puts them in the order of their records.
    pub fn sort(&mut self) {
        let all = &mut self.places[..self.len];
        if !all.is_sorted_by_key(|done| done.record) {
            all.sort_unstable_by_key(|done| done.record);
        }
    }

    pub fn clear(&mut self) {
        self.len = 0;
        self.carries = false;
    }
}
