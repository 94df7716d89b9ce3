//! Where the lines about fallbacks go.

use std::fmt;
use std::io::Write;
use std::sync::Arc;

/// Where lines go.
#[derive(Clone, Default)]
pub enum Log {
    /// Nowhere; counters tell all the same.
    Quiet,
    /// To standard error, with the program's name before each.
    #[default]
    Stderr,
    /// To a function of the user.
    To(Arc<dyn Fn(&str) + Send + Sync>),
}

impl Log {
    pub(crate) fn line(&self, text: &str) {
        match self {
            Self::Quiet => {}
            Self::Stderr => {
                // Nobody may be there to read it; the transfer goes on all the same.
                let _unread = writeln!(std::io::stderr(), "sidecore: {text}");
            }
            Self::To(function) => function(text),
        }
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quiet => "Quiet",
            Self::Stderr => "Stderr",
            Self::To(_) => "To(function)",
        })
    }
}
