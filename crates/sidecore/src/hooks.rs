//! Breaking a side core on purpose, for tests.
//!
//! A hook is asked at each [`Moment`] of serving; it may panic or block there. Without hooks (the
//! default) each moment costs one comparison.

use std::sync::Arc;

/// Where in its work a side core is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Moment {
    /// Completion words are out, their records are not free yet.
    AfterWords,
    /// Completion words are stored, and have perhaps not left the core.
    AmidWords,
    /// Before the ring is looked at, with the ring's lock held.
    BeforeFetch,
    /// Requests are claimed, payload and completion words are not all stored.
    BeforeWords,
    /// Requests are in flight, storage is about to be polled.
    BeforePoll,
}

/// What is asked at each moment; may panic or block.
#[derive(Clone, Default)]
pub struct Hooks(Option<Arc<dyn Fn(Moment) + Send + Sync>>);

impl Hooks {
    /// Calls `hook` at each moment of every side core.
    pub fn new(hook: impl Fn(Moment) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    #[inline]
    pub(crate) fn at(&self, moment: Moment) {
        if let Some(hook) = &self.0 {
            hook(moment);
        }
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Hooks(set)" } else { "Hooks(none)" })
    }
}
