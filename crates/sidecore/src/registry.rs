//! Sources and buffers by id: index and generation, so that a stale id is told from a live one.
//!
//! Registering is rare and takes a lock; looking up is done by side cores in a [`Tables`] snapshot
//! of their own, which they renew when [`Registry::version`] has changed. A deregistration is over
//! when every side core has renewed its snapshot: [`Retirement`] tells.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use abi::ring::{BUFFER_OFFSET_MAX, BufferView, Id, SOURCE_OFFSET_MAX, SourceView};
use gpu::DeviceMemory;
use storage::{Geometry, Storage};

use crate::error::EngineError;
use crate::side_core::CoreShared;

/// Which operations a source or buffer may take part in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rights(u8);

impl Rights {
    /// Read requests: from a source, into a buffer.
    pub const READ: Self = Self(1);
    /// Write requests: from a buffer, into a source.
    pub const WRITE: Self = Self(2);
    /// Both.
    pub const READ_WRITE: Self = Self(3);

    /// Whether all of `other` is in these.
    pub const fn allow(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A registered source.
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) id: Id,
    geometry: Geometry,
    address: u64,
}

impl Source {
    /// What a kernel needs to name it.
    pub fn view(&self) -> SourceView {
        SourceView {
            bytes: self.geometry.bytes,
            address: self.address,
            id: self.id.bits(),
            block_bytes: self.geometry.block_bytes,
        }
    }

    /// Its id.
    pub fn id(&self) -> Id {
        self.id
    }
}

/// A registered buffer.
#[derive(Clone, Debug)]
pub struct Buffer {
    pub(crate) id: Id,
    memory: DeviceMemory,
}

impl Buffer {
    /// What a kernel needs to name it.
    pub fn view(&self) -> BufferView {
        BufferView {
            address: self.memory.address,
            bytes: self.memory.bytes,
            id: self.id.bits(),
            reserved: 0,
        }
    }

    /// Its id.
    pub fn id(&self) -> Id {
        self.id
    }

    /// The memory that was registered.
    pub fn memory(&self) -> &DeviceMemory {
        &self.memory
    }
}

/// A source as side cores see it.
#[derive(Clone)]
pub(crate) struct SourceEntry {
    pub id: Id,
    pub rights: Rights,
    pub geometry: Geometry,
    pub storage: Arc<dyn Storage>,
    /// Whether lanes can load what it lends.
    pub reached: bool,
}

/// A buffer as side cores see it.
#[derive(Clone)]
pub(crate) struct BufferEntry {
    pub id: Id,
    pub rights: Rights,
    pub memory: DeviceMemory,
}

/// A table entry: live, or the generation that it will have next.
#[derive(Clone)]
pub(crate) enum Place<T> {
    Live(T),
    Vacant { generation: u32 },
}

/// All registrations at one moment. Immutable.
#[derive(Clone, Default)]
pub(crate) struct Tables {
    pub version: u64,
    /// Version of the newest tables.
    newest: Arc<AtomicU64>,
    pub sources: Vec<Place<SourceEntry>>,
    pub buffers: Vec<Place<BufferEntry>>,
}

/// Why an id names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unnamed {
    Never,
    Stale,
}

fn find<T>(places: &[Place<T>], id: Id, id_of: impl Fn(&T) -> Id) -> Result<&T, Unnamed> {
    match places.get(id.index() as usize) {
        Some(Place::Live(entry)) if id_of(entry) == id => Ok(entry),
        Some(_) => Err(Unnamed::Stale),
        None => Err(Unnamed::Never),
    }
}

impl Tables {
    /// Whether nothing was registered or deregistered since.
    pub fn are_newest(&self) -> bool {
        // Pairs with the Release in `change`: what a request names was registered before its lane was told.
        self.newest.load(Ordering::Acquire) == self.version
    }

    #[inline]
    pub fn source(&self, id: Id) -> Result<&SourceEntry, Unnamed> {
        find(&self.sources, id, |entry| entry.id)
    }

    #[inline]
    pub fn buffer(&self, id: Id) -> Result<&BufferEntry, Unnamed> {
        find(&self.buffers, id, |entry| entry.id)
    }
}

/// Puts an entry into the first vacant place, or a new one.
fn place<T>(
    places: &mut Vec<Place<T>>,
    resource: &'static str,
    make: impl FnOnce(Id) -> T,
) -> Result<Id, EngineError> {
    let vacant = places.iter().position(|p| matches!(p, Place::Vacant { .. }));
    let at = vacant.unwrap_or(places.len());
    let index = u32::try_from(at)
        .ok()
        .filter(|&index| index <= Id::INDEX_MAX)
        .ok_or(EngineError::Exhausted { resource, limit: u64::from(Id::INDEX_MAX) + 1 })?;
    let generation = match places.get(at) {
        Some(Place::Vacant { generation }) => *generation,
        _ => 1,
    };
    let id = Id::new(index, generation);
    let entry = Place::Live(make(id));
    match places.get_mut(at) {
        Some(vacant) => *vacant = entry,
        None => places.push(entry),
    }
    Ok(id)
}

fn vacate<T>(places: &mut [Place<T>], id: Id, id_of: impl Fn(&T) -> Id) -> bool {
    let Some(place) = places.get_mut(id.index() as usize) else { return false };
    let live = matches!(place, Place::Live(entry) if id_of(entry) == id);
    if live {
        *place = Place::Vacant { generation: (id.generation() + 1) & 0xfff };
    }
    live
}

/// The registrations, shared by the engine and its side cores.
#[derive(Default)]
pub(crate) struct Registry {
    current: Mutex<Arc<Tables>>,
    version: Arc<AtomicU64>,
    cores: Mutex<Vec<Weak<CoreShared>>>,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Arc<Tables>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes with every registration and deregistration.
    #[inline]
    pub fn version(&self) -> u64 {
        // Pairs with the Release in `change`.
        self.version.load(Ordering::Acquire)
    }

    pub fn snapshot(&self) -> Arc<Tables> {
        Arc::clone(&self.lock())
    }

    /// Makes a side core one of those that a retirement waits for.
    pub fn watch(&self, core: &Arc<CoreShared>) {
        let mut cores = self.cores.lock().unwrap_or_else(PoisonError::into_inner);
        cores.retain(|core| core.strong_count() > 0);
        cores.push(Arc::downgrade(core));
    }

    fn change<R>(
        &self,
        act: impl FnOnce(&mut Tables) -> Result<R, EngineError>,
    ) -> Result<R, EngineError> {
        let mut current = self.lock();
        let mut next = Tables::clone(&current);
        let result = act(&mut next)?;
        next.version = current.version + 1;
        next.newest = Arc::clone(&self.version);
        self.version.store(next.version, Ordering::Release);
        *current = Arc::new(next);
        Ok(result)
    }

    pub fn register_source(
        &self,
        storage: Arc<dyn Storage>,
        rights: Rights,
        address: u64,
    ) -> Result<Source, EngineError> {
        let geometry = storage.geometry();
        if geometry.bytes > SOURCE_OFFSET_MAX {
            let why = format!("{} bytes; requests carry 48-bit offsets", geometry.bytes);
            return Err(EngineError::Unsupported { what: "a source this long", why });
        }
        if geometry.block_bytes == 0 {
            return Err(EngineError::Misuse("a source's block size is 0".into()));
        }
        if rights.allow(Rights::WRITE) && geometry.read_only {
            let why = "the storage is read-only: register it for reading".into();
            return Err(EngineError::Unsupported { what: "writing to this source", why });
        }
        let id = self.change(|tables| {
            place(&mut tables.sources, "sources", |id| SourceEntry {
                id,
                rights,
                geometry,
                storage,
                reached: address != 0,
            })
        })?;
        Ok(Source { id, geometry, address })
    }

    pub fn register_buffer(
        &self,
        memory: DeviceMemory,
        rights: Rights,
    ) -> Result<Buffer, EngineError> {
        if memory.bytes > BUFFER_OFFSET_MAX {
            let why = format!("{} bytes; requests carry 40-bit offsets", memory.bytes);
            return Err(EngineError::Unsupported { what: "a buffer this long", why });
        }
        if memory.window.as_ref().is_some_and(|w| (w.len_bytes() as u64) < memory.bytes) {
            return Err(EngineError::Misuse("the window is shorter than the buffer".into()));
        }
        let id = self.change(|tables| {
            let memory = memory.clone();
            place(&mut tables.buffers, "buffers", |id| BufferEntry { id, rights, memory })
        })?;
        Ok(Buffer { id, memory })
    }

    pub fn deregister_source(self: &Arc<Self>, id: Id) -> Result<Retirement, EngineError> {
        self.retire(|tables| vacate(&mut tables.sources, id, |entry| entry.id))
    }

    pub fn deregister_buffer(self: &Arc<Self>, id: Id) -> Result<Retirement, EngineError> {
        self.retire(|tables| vacate(&mut tables.buffers, id, |entry| entry.id))
    }

    fn retire(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Tables) -> bool,
    ) -> Result<Retirement, EngineError> {
        let version = self.change(|tables| {
            if act(tables) {
                Ok(tables.version + 1)
            } else {
                Err(EngineError::Misuse("deregistering what is not registered".into()))
            }
        })?;
        Ok(Retirement { registry: Arc::clone(self), version })
    }
}

/// A deregistration: refused to new requests at once, over when no side core can touch it.
#[must_use = "the memory may be touched until the retirement is complete"]
pub struct Retirement {
    registry: Arc<Registry>,
    version: u64,
}

impl Retirement {
    /// Whether no side core can touch what was deregistered any more.
    pub fn is_complete(&self) -> bool {
        let cores = self.registry.cores.lock().unwrap_or_else(PoisonError::into_inner);
        let cores: Vec<_> = cores.iter().filter_map(Weak::upgrade).collect();
        let complete = cores.iter().all(|core| core.has_seen(self.version));
        if complete {
            // The memory goes here and now, if nobody else has it.
            cores.iter().for_each(|core| drop(core.take_left()));
        }
        complete
    }

    /// Waits until it is complete.
    ///
    /// # Errors
    /// [`EngineError::TimedOut`]: a side core did not look within `limit`.
    pub fn wait(&self, limit: Duration) -> Result<(), EngineError> {
        let start = Instant::now();
        while !self.is_complete() {
            if start.elapsed() >= limit {
                let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                return Err(EngineError::TimedOut { what: "a deregistration", limit_ms });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }
}
