//! Asynchronous events: requests that wait, and errors that wait for a request.
//!
//! Only errors are reported: doorbells that were written wrongly. An event of a type is reported
//! once, and then masked until the host reads the log page that it names.
//!
//! Source: NVMe Base Specification 2.0c, 5.2.

use spec::Status;
use spec::event::{AsyncEvent, LogPage};

use crate::controller::Controller;
use crate::queues::Answer;

/// Event requests that may wait at once.
pub(crate) const REQUESTS_MAX: usize = 4;

/// Requests and events that have not met.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Command identifiers of waiting requests, oldest first.
    requests: Vec<u16>,
    /// The oldest event that no request has carried.
    pending: Option<u8>,
    /// An event was reported, and its log page not read since.
    masked: bool,
}

impl Events {
    /// Keeps an event for the next request; a younger one of the same type is part of it.
    pub(crate) fn remember(&mut self, what: u8) {
        self.pending.get_or_insert(what);
    }

    /// The request that carries the pending event, if both are there.
    fn take(&mut self) -> Option<Answer> {
        if self.masked || self.requests.is_empty() {
            return None;
        }
        let what = self.pending.take()?;
        self.masked = true;
        let event =
            AsyncEvent { event_type: AsyncEvent::TYPE_ERROR, what, log_page: LogPage::ERRORS };
        Some(Answer::admin(self.requests.remove(0), Ok(event.encode())))
    }

    /// The error log was read: the next event may come.
    pub(crate) fn unmask(&mut self) {
        self.masked = false;
    }

    /// Forgets a waiting request; false where it does not wait.
    pub(crate) fn withdraw(&mut self, command: u16) -> bool {
        let position = self.requests.iter().position(|request| *request == command);
        position.map(|at| self.requests.remove(at)).is_some()
    }
}

impl Controller {
    /// Reports an error that belongs to no command.
    pub(crate) fn report(&mut self, what: u8) {
        self.counters.stray_errors += 1;
        self.events.remember(what);
        self.deliver_event();
    }

    pub(crate) fn deliver_event(&mut self) {
        if let Some(answer) = self.events.take() {
            self.answer(answer);
        }
    }

    /// Asynchronous Event Request: no answer until there is an event.
    pub(crate) fn request_event(&mut self, command: u16) -> Result<(), Status> {
        if self.events.requests.len() >= REQUESTS_MAX {
            return Err(Status::EVENT_REQUEST_LIMIT_EXCEEDED);
        }
        self.events.requests.push(command);
        self.deliver_event();
        Ok(())
    }
}
