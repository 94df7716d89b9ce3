//! Asynchronous events: requests that wait, and events that wait for a request.
//!
//! | type | event | when |
//! | --- | --- | --- |
//! | error | invalid doorbell register, invalid doorbell value | a doorbell was written wrongly |
//! | health | temperature threshold | the host's thresholds leave the temperature outside |
//!
//! Of each kind one event is kept until a request carries it. A type that was reported is masked
//! until the host reads the log page that the event names (unless that retains it). Health events
//! are sent where the event configuration asks for them; errors always are, and they are in the
//! Error Information log, whose entries go with a reset.
//!
//! Sources: NVMe Base Specification 2.0c, 5.2, 5.16.1.2, 5.27.1.3 and 5.27.1.8.

use std::collections::VecDeque;

use spec::Status;
use spec::event::{AsyncEvent, ErrorEntry, LogPage};
use zerocopy::IntoBytes;

use crate::controller::Controller;
use crate::queues::Answer;

/// Event requests that may wait at once.
pub(crate) const REQUESTS_MAX: usize = 4;
/// Entries of the Error Information log.
pub(crate) const ERRORS_MAX: usize = 8;
/// The drive's temperature, which never changes.
pub(crate) const TEMPERATURE_KELVIN: u16 = 300;
/// Bit of the event configuration: the temperature. It has the bit of the critical warning.
const TEMPERATURE_BIT: u32 = 1;

/// Requests and events that have not met.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Command identifiers of waiting requests, oldest first.
    requests: Vec<u16>,
    /// Events that no request has carried, oldest first; one of a kind.
    pending: Vec<AsyncEvent>,
    /// Log pages of the types that were reported, and whose log page was not read since.
    masked: Vec<u8>,
    /// The last errors, youngest first.
    errors: VecDeque<ErrorEntry>,
    too_warm: bool,
}

impl Events {
    fn remember(&mut self, event: AsyncEvent) {
        if !self.pending.contains(&event) {
            self.pending.push(event);
        }
    }

    /// Counts and logs an error of no command, and keeps its event for the next request.
    pub(crate) fn note_error(&mut self, what: u8, count: &mut u64) {
        *count += 1;
        let status = match what {
            AsyncEvent::INVALID_DOORBELL_REGISTER => Status::INVALID_QUEUE_ID,
            _ => Status::INVALID_FIELD,
        };
        self.errors.truncate(ERRORS_MAX - 1);
        self.errors.push_front(ErrorEntry::of_no_command(*count, status));
        let log_page = LogPage::ERRORS;
        self.remember(AsyncEvent { event_type: AsyncEvent::TYPE_ERROR, what, log_page });
    }

    /// The oldest request, with the oldest event that may go, if both are there.
    fn take(&mut self) -> Option<Answer> {
        if self.requests.is_empty() {
            return None;
        }
        let may_go = |event: &AsyncEvent| !self.masked.contains(&event.log_page);
        let event = self.pending.remove(self.pending.iter().position(may_go)?);
        self.masked.push(event.log_page);
        Some(Answer::admin(self.requests.remove(0), Ok(event.encode())))
    }

    /// A log page was read: the next event of its type may come.
    pub(crate) fn unmask(&mut self, log_page: u8) {
        self.masked.retain(|masked| *masked != log_page);
    }

    /// Forgets a waiting request; false where it does not wait.
    pub(crate) fn withdraw(&mut self, command: u16) -> bool {
        let position = self.requests.iter().position(|request| *request == command);
        position.map(|at| self.requests.remove(at)).is_some()
    }

    /// The Error Information log.
    pub(crate) fn error_log(&self) -> Vec<u8> {
        let mut log: Vec<u8> =
            self.errors.iter().flat_map(|entry| entry.as_bytes().to_vec()).collect();
        log.resize(ERRORS_MAX * ErrorEntry::BYTES, 0);
        log
    }

    /// Whether the temperature is a critical warning.
    pub(crate) fn is_too_warm(&self) -> bool {
        self.too_warm
    }
}

impl Controller {
    /// Reports an error that belongs to no command.
    pub(crate) fn report(&mut self, what: u8) {
        self.events.note_error(what, &mut self.counters.stray_errors);
        self.deliver_events();
    }

    /// Looks at the temperature after a threshold or the event configuration may have changed.
    pub(crate) fn watch_temperature(&mut self) {
        let beyond = self.features.is_beyond_threshold(TEMPERATURE_KELVIN);
        let before = std::mem::replace(&mut self.events.too_warm, beyond);
        if beyond && !before && self.features.wants_event(TEMPERATURE_BIT) {
            self.events.remember(AsyncEvent {
                event_type: AsyncEvent::TYPE_HEALTH,
                what: AsyncEvent::TEMPERATURE_THRESHOLD,
                log_page: LogPage::HEALTH,
            });
            self.deliver_events();
        }
    }

    pub(crate) fn deliver_events(&mut self) {
        while let Some(answer) = self.events.take() {
            self.answer(answer);
        }
    }

    /// Asynchronous Event Request: no answer until there is an event.
    pub(crate) fn request_event(&mut self, command: u16) -> Result<(), Status> {
        if self.events.requests.len() >= REQUESTS_MAX {
            return Err(Status::EVENT_REQUEST_LIMIT_EXCEEDED);
        }
        self.events.requests.push(command);
        self.deliver_events();
        Ok(())
    }
}
