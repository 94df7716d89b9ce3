//! What a ready controller does in each step: doorbells, fetching, storage, posting.
//!
//! Order within a step: storage requests that found no room, new commands of each queue in turn (a
//! burst each), what the storage ended, what is due; then one fence for all payload, then all
//! completions. Last, deletions of queues that have become empty.

use mem::fence_payload;
use spec::Command;
use spec::event::AsyncEvent;

use crate::controller::{Controller, Namespace, Phase, Progress, Shutdown};
use crate::queues::{Answer, Ring, SubmissionQueue};

/// Most commands fetched from one queue before the next has its turn.
const BURST: u32 = 64;

impl Controller {
    pub(crate) fn serve(&mut self, now_ns: u64) -> Progress {
        self.dma.refresh();
        let mut worked = self.requests_wait && self.resubmit_waiting();
        if self.backlogged {
            worked |= self.drain_backlogs();
        }
        if self.shutdown == Shutdown::No {
            for position in 0..self.active.len() {
                worked |= self.fetch_from(self.active[position], now_ns);
                if self.phase != Phase::Ready {
                    return Progress::Worked;
                }
            }
        }
        worked |= self.poll_storage(now_ns);
        while let Some(index) = self.flights.take_due(now_ns) {
            self.finish(index);
            worked = true;
        }
        if !worked {
            worked |= self.look_around();
        }
        worked |= self.post_outbox();
        if self.shutdown != Shutdown::No {
            self.continue_shutdown();
        }
        if worked { Progress::Worked } else { self.outlook() }
    }

    /// What there is to wait for.
    fn outlook(&self) -> Progress {
        if let Some(due_ns) = self.flights.next_due_ns() {
            return Progress::Waiting { until_ns: Some(due_ns) };
        }
        let busy = |n: &Namespace| n.in_flight() > 0 || !n.waiting.is_empty();
        if self.namespaces.iter().any(busy) {
            Progress::Waiting { until_ns: None }
        } else {
            Progress::Idle
        }
    }

    /// How many commands of a queue may be taken now.
    #[inline]
    fn allowance(&self, submission: &SubmissionQueue) -> u32 {
        let completion = self.completion[usize::from(submission.completion_queue)].as_ref();
        // Back-pressure: a host that does not consume completions gets no more of them.
        let heard = completion.is_some_and(|cq| cq.backlog.is_empty());
        if heard && !submission.stuck && submission.deleting.is_none() { BURST } else { 0 }
    }

    fn fetch_from(&mut self, queue: u16, now_ns: u64) -> bool {
        let value = self.bar.submission_tail(queue);
        let Some(submission) = &mut self.submission[usize::from(queue)] else { return false };
        match submission.ring(value) {
            Ring::Same if submission.is_empty() => return false,
            Ring::Same => {}
            Ring::Moved => {
                self.counters.doorbells += 1;
                // What the host registered before it rang is part of the map from here on.
                self.dma.refresh();
            }
            Ring::Invalid => self.report(AsyncEvent::INVALID_DOORBELL_VALUE),
        }
        let Some(submission) = &self.submission[usize::from(queue)] else { return false };
        let allowance = self.allowance(submission);
        let mut fetched = 0;
        while fetched < allowance {
            if queue != 0 && (self.requests_wait || !self.flights.has_room()) {
                break;
            }
            let Some(submission) = &mut self.submission[usize::from(queue)] else { break };
            if submission.stuck {
                break;
            }
            if submission.wants_run() {
                self.counters.fetch_runs += 1;
                let clock = self.options.fetch_clock.unwrap_or(|| 0);
                let before = clock();
                self.timing.expect(submission.fetch_run());
                self.counters.fetch_ns += clock().saturating_sub(before);
            }
            let Some(entry) = submission.take() else { break };
            fetched += 1;
            let command: Command = zerocopy::transmute!(entry);
            if queue == 0 {
                self.counters.admin_commands += 1;
                self.admin_command(&command);
            } else {
                self.counters.io_commands += 1;
                self.begin_io(queue, &command, now_ns);
                if self.phase != Phase::Ready {
                    return true;
                }
            }
        }
        fetched > 0
    }

    /// Where nothing else is to do: completion doorbells, and doorbells that belong to no queue.
    fn look_around(&mut self) -> bool {
        let mut moved = false;
        self.deliver_events();
        for position in 0..self.active.len() {
            let submission = self.submission[usize::from(self.active[position])].as_ref();
            let queue = submission.map_or(0, |q| q.completion_queue);
            moved |= self.look_at_completion_doorbell(queue);
        }
        let index = self.next_doorbell;
        self.next_doorbell = (index + 1) % self.bar.doorbells();
        let of_completion = index % 2 == 1;
        let exists = match of_completion {
            true => self.completion[index / 2].is_some(),
            false => self.submission[index / 2].is_some(),
        };
        if !exists && self.bar.doorbell(index) != 0 {
            self.bar.clear_doorbell(index);
            self.report(AsyncEvent::INVALID_DOORBELL_REGISTER);
        } else if exists && of_completion {
            // A completion queue without users is looked at here only.
            moved |= self.look_at_completion_doorbell(u16::try_from(index / 2).unwrap_or(0));
        }
        moved
    }

    fn look_at_completion_doorbell(&mut self, queue: u16) -> bool {
        let value = self.bar.completion_head(queue);
        let Some(completion) = &mut self.completion[usize::from(queue)] else { return false };
        match completion.ring(value) {
            Ring::Same => return false,
            Ring::Moved => {}
            Ring::Invalid => {
                self.report(AsyncEvent::INVALID_DOORBELL_VALUE);
                return false;
            }
        }
        self.drain_backlog(queue);
        true
    }

    /// Looks whether hosts have made room in full completion queues.
    #[cold]
    fn drain_backlogs(&mut self) -> bool {
        let mut moved = false;
        self.backlogged = false;
        for queue in 0..self.completion.len() {
            let waits =
                |c: &Self| c.completion[queue].as_ref().is_some_and(|q| !q.backlog.is_empty());
            if waits(self) {
                moved |= self.look_at_completion_doorbell(u16::try_from(queue).unwrap_or(0));
                self.backlogged |= waits(self);
            }
        }
        moved
    }

    /// Posts what waits for room in this queue, as far as there is room.
    fn drain_backlog(&mut self, queue: u16) {
        fence_payload();
        let Some(completion) = &mut self.completion[usize::from(queue)] else { return };
        while !completion.is_full() {
            let Some(answer) = completion.backlog.pop_front() else { break };
            let submission = self.submission[usize::from(answer.submission_queue)].as_ref();
            completion.post(&answer, submission.map_or(0, |q| q.head));
            self.counters.completions += u64::from(answer.submission_queue != 0);
        }
        if completion.is_window() {
            fence_payload();
        }
    }

    /// Ends an admin or I/O command; the completion is written at the end of this step.
    #[inline]
    pub(crate) fn answer(&mut self, answer: Answer) {
        self.outbox.push(answer);
    }

    /// Writes all completions of this step.
    fn post_outbox(&mut self) -> bool {
        let mut any = self.post_answers();
        if self.deletes_wait > 0 && self.close_deleted_queues() {
            any |= self.post_answers();
        }
        any
    }

    fn post_answers(&mut self) -> bool {
        if self.outbox.is_empty() {
            return false;
        }
        // Payload of all routes (this thread's stores) before any completion.
        fence_payload();
        let mut window = false;
        for position in 0..self.outbox.len() {
            let answer = self.outbox[position];
            let queue = usize::from(answer.submission_queue);
            let Some(submission) = &self.submission[queue] else { continue };
            let (id, head) = (submission.completion_queue, submission.head);
            let Some(completion) = &mut self.completion[usize::from(id)] else { continue };
            if completion.is_full()
                && completion.backlog.is_empty()
                && completion.ring(self.bar.completion_head(id)) == Ring::Invalid
            {
                let count = &mut self.counters.stray_errors;
                self.events.note_error(AsyncEvent::INVALID_DOORBELL_VALUE, count);
            }
            if completion.is_full() || !completion.backlog.is_empty() {
                completion.backlog.push_back(answer);
                self.backlogged = true;
                continue;
            }
            completion.post(&answer, head);
            window |= completion.is_window();
            self.counters.completions += u64::from(queue != 0);
        }
        self.outbox.clear();
        if window {
            fence_payload();
        }
        true
    }

    /// Removes submission queues whose Delete waits, once none of their commands is left.
    fn close_deleted_queues(&mut self) -> bool {
        let mut closed = false;
        for position in (0..self.active.len()).rev() {
            let queue = self.active[position];
            let Some(submission) = &self.submission[usize::from(queue)] else { continue };
            let Some(command) = submission.deleting.filter(|_| submission.outstanding == 0) else {
                continue;
            };
            self.counters.io_left += u64::from(submission.unfetched());
            if let Some(completion) = &mut self.completion[usize::from(submission.completion_queue)]
            {
                completion.users -= 1;
                completion.backlog.retain(|answer| answer.submission_queue != queue);
            }
            self.submission[usize::from(queue)] = None;
            self.deletes_wait -= 1;
            self.bar.clear_doorbell(2 * usize::from(queue));
            self.active.remove(position);
            self.answer(Answer::admin(command, Ok(0)));
            closed = true;
        }
        closed
    }
}
