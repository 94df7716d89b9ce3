//! Fibers: one lane each, on stacks that are used again.
// UNSAFETY: calls device code through its entry point, and gives up a fiber without unwinding it.
#![expect(unsafe_code, reason = "switches stacks and calls C++")]

use std::sync::{Mutex, PoisonError};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use crate::device::{Call, LaneContext, Reply, enter_lane};
use crate::{Entry, LaunchError};

/// Bytes of a lane's stack. Device code needs a few KiB; what is never touched costs no memory.
const STACK_BYTES: usize = 64 << 10;
/// Stacks kept for the next launch.
const FREE_MAX: usize = 16 << 10;

/// Free stacks, each with a guard page below it.
#[derive(Default)]
pub(crate) struct StackPool {
    free: Mutex<Vec<DefaultStack>>,
}

impl StackPool {
    fn take(&self) -> Result<DefaultStack, LaunchError> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match free {
            Some(stack) => Ok(stack),
            None => DefaultStack::new(STACK_BYTES).map_err(LaunchError::Stack),
        }
    }

    fn put(&self, stack: DefaultStack) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < FREE_MAX {
            free.push(stack);
        }
    }
}

/// Address of a kernel's argument structure. Whoever launches keeps it alive and constant.
#[derive(Clone, Copy)]
pub(crate) struct Arguments(pub *const std::ffi::c_void);

/// The argument structure, aligned as a kernel expects it.
pub(crate) struct ArgumentCopy {
    words: Vec<u128>,
}

impl ArgumentCopy {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut words: Vec<u128> = bytes
            .chunks(16)
            .map(|chunk| {
                let mut word = [0; 16];
                word[..chunk.len()].copy_from_slice(chunk);
                u128::from_ne_bytes(word)
            })
            .collect();
        words.push(0);
        Self { words }
    }

    pub(crate) fn address(&self) -> Arguments {
        Arguments(self.words.as_ptr().cast())
    }
}

/// One lane's execution.
pub(crate) struct Fiber {
    coroutine: Option<Coroutine<Reply, Call, (), DefaultStack>>,
    /// Boxed: device code holds its address.
    context: Box<LaneContext>,
}

impl Fiber {
    /// Prepares a lane; it runs at the first [`Fiber::resume`].
    pub(crate) fn new(
        pool: &StackPool,
        entry: Entry,
        arguments: Arguments,
        context: LaneContext,
    ) -> Result<Self, LaunchError> {
        let context = Box::new(context);
        let address = std::ptr::from_ref::<LaneContext>(&*context);
        let coroutine = Coroutine::with_stack(pool.take()?, move |yielder, _: Reply| {
            // SAFETY: the context is boxed and lives as long as this fiber is resumed.
            let context = unsafe { &*address };
            context.yielder.set(yielder);
            let Arguments(arguments) = arguments;
            // SAFETY: `Entry` is device code for the simulator; the launch keeps its arguments.
            unsafe { (entry.0)(arguments) };
        });
        Ok(Self { coroutine: Some(coroutine), context })
    }

    /// Runs the lane until its next call; `None` when it has returned.
    pub(crate) fn resume(&mut self, reply: Reply) -> Option<Call> {
        let coroutine = self.coroutine.as_mut()?;
        let entered = enter_lane(&self.context);
        let result = coroutine.resume(reply);
        drop(entered);
        match result {
            CoroutineResult::Yield(call) => Some(call),
            CoroutineResult::Return(()) => None,
        }
    }

    /// Ends the lane where it is and gives its stack back.
    pub(crate) fn retire(&mut self, pool: &StackPool) {
        let Some(mut coroutine) = self.coroutine.take() else { return };
        if !coroutine.done() {
            // SAFETY: what is on the stack is `ask` and the entry closure, which own nothing, and
            // device code, which the headers demand to have no destructors; all may be forgotten.
            unsafe { coroutine.force_reset() };
        }
        pool.put(coroutine.into_stack());
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        if let Some(mut coroutine) = self.coroutine.take()
            && !coroutine.done()
        {
            // SAFETY: as in `retire`.
            unsafe { coroutine.force_reset() };
        }
    }
}
