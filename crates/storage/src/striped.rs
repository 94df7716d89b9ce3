//! Several storages as one, stripe by stripe in turn: their lengths and their rates add up.
//!
//! ```text
//! stripe   0   1   2   3   4   5 ...      on member   0   1   2   0   1   2 ...
//! ```
//!
//! What the shortest member has beyond whole stripes is not used, nor what others have beyond the
//! shortest. A request that fails on one member fails; other stripes of a write may have landed.

use std::sync::Arc;

use crate::queue::{Geometry, Lent, Op, QueueOptions, Storage, StorageError, StorageQueue};
use crate::several::{Layout, Part, SeveralQueue, common_geometry};

/// Storages striped into one.
pub struct Striped {
    members: Vec<Arc<dyn Storage>>,
    stripe_bytes: u32,
    geometry: Geometry,
}

impl Striped {
    /// Stripes `members` in this order, `stripe_bytes` at a time.
    ///
    /// # Errors
    /// `Misuse` without members, or where a stripe is no whole number of every member's blocks or
    /// larger than its largest request; `Unsupported` where the shortest member holds no stripe.
    pub fn new(members: Vec<Arc<dyn Storage>>, stripe_bytes: u32) -> Result<Self, StorageError> {
        let common = common_geometry(&members)?;
        let max = common.transfer_bytes_max;
        if stripe_bytes == 0 || !stripe_bytes.is_multiple_of(common.block_bytes) {
            let block = common.block_bytes;
            let text = format!("stripes of {stripe_bytes} bytes over blocks of {block}");
            return Err(StorageError::Misuse(text));
        }
        if stripe_bytes > max {
            let text = format!("stripes of {stripe_bytes} bytes, requests of at most {max}");
            return Err(StorageError::Misuse(text));
        }
        let stripes = common.bytes / u64::from(stripe_bytes);
        let bytes = stripes
            .checked_mul(u64::from(stripe_bytes) * members.len() as u64)
            .filter(|bytes| *bytes > 0)
            .ok_or_else(|| StorageError::Unsupported {
                what: format!("stripes of {stripe_bytes} bytes"),
                why: format!("a member has {} bytes", common.bytes),
            })?;
        Ok(Self { members, stripe_bytes, geometry: Geometry { bytes, ..common } })
    }
}

impl Storage for Striped {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn StorageQueue>, StorageError> {
        let stripes = Stripes { bytes: self.stripe_bytes, members: self.members.len() };
        let queue = SeveralQueue::open(stripes, self.geometry, &self.members, options)?;
        Ok(Box::new(queue))
    }

    fn explain(&self) -> String {
        let members: Vec<String> = self.members.iter().map(|m| m.explain()).collect();
        format!("stripes of {} bytes over [{}]", self.stripe_bytes, members.join("] ["))
    }
}

struct Stripes {
    bytes: u32,
    members: usize,
}

impl Layout for Stripes {
    fn split(&mut self, request: &Lent<'_>, bytes: u32, parts: &mut Vec<Part>) {
        if request.op == Op::Flush {
            return parts.extend((0..self.members).map(|member| Part::new(member, 0, 0, 0)));
        }
        let stripe_bytes = u64::from(self.bytes);
        let members = self.members as u64;
        let mut start = 0;
        while start < bytes {
            let at = request.offset + u64::from(start);
            let (stripe, within) = (at / stripe_bytes, at % stripe_bytes);
            let room = u32::try_from(stripe_bytes - within).expect("a stripe's length");
            let now = room.min(bytes - start);
            let member = usize::try_from(stripe % members).expect("less than the members");
            parts.push(Part::new(member, stripe / members * stripe_bytes + within, start, now));
            start += now;
        }
    }

    fn retry(&self, _op: Op, _last: usize, _tries: usize) -> Option<usize> {
        None
    }
}
