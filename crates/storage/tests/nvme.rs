//! Storage on a namespace: the conformance suite and the controller's faults, with the software
//! controller served by a thread.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ctrl::{Controller, NamespaceOptions, Options, Server, ServerOptions};
use driver::{DriverOptions, RegionDevice};
use mem::{AddressMap, MemoryKind, Region};
use sidecore_storage as storage;
use spec::{Nsid, Status};
use storage::faults::{FaultScript, Injector};
use storage::{
    Completion, MemoryStorage, NvmeOptions, NvmeStorage, Op, QueueOptions, Rejected, Replicated,
    Request, Storage, StorageQueue, Striped, pattern,
};
use testkit::conformance;

const BYTES: usize = 4 << 20;

struct Drive {
    storage: NvmeStorage,
    injector: Arc<Injector>,
    // Last: the controller is served for as long as anything may want it.
    _server: Server,
}

fn drive(disk: MemoryStorage, block_bytes: u32, faults: &str, timing: &str) -> Drive {
    serve(Arc::new(disk), block_bytes, faults, timing)
}

fn serve(disk: Arc<dyn Storage>, block_bytes: u32, faults: &str, timing: &str) -> Drive {
    let script: FaultScript = faults.parse().unwrap();
    let injector = Arc::new(Injector::new(&script, block_bytes));
    let mut namespace = NamespaceOptions::new(disk);
    namespace.block_bytes = block_bytes;
    namespace.faults = Some(Arc::clone(&injector));
    let mut options = Options::new(vec![namespace]);
    options.transfer_bytes_max = 1 << 17;
    options.queue_pairs_max = 8;
    options.timing = timing.parse().unwrap();
    let map = Arc::new(AddressMap::new());
    let controller = Controller::new(options, Arc::clone(&map)).unwrap();
    let device = RegionDevice::new(controller.bar(), map);
    let server = Server::start(vec![controller], ServerOptions::default()).unwrap();
    let options = NvmeOptions {
        driver: DriverOptions { queues_max: 8, ..DriverOptions::default() },
        command_limit: Duration::from_millis(300),
        ..NvmeOptions::default()
    };
    let storage = NvmeStorage::wait_open(Arc::new(device), &options).unwrap();
    Drive { storage, injector, _server: server }
}

fn patterned() -> MemoryStorage {
    let storage = MemoryStorage::new(BYTES).unwrap();
    pattern::fill_region(storage.region(), 0, BYTES, 0, 1);
    storage
}

#[test]
fn blocks_of_512_bytes() {
    conformance::run(&drive(patterned(), 512, "", "").storage);
}

#[test]
fn blocks_of_4096_bytes() {
    conformance::run(&drive(patterned(), 4096, "", "").storage);
}

#[test]
fn a_slow_drive() {
    conformance::run(&drive(patterned(), 512, "", "latency=uniform:20us:200us").storage);
}

/// A namespace whose blocks lie on other controllers' namespaces, and the servers of those.
fn behind_one_namespace(
    join: impl Fn(Vec<Arc<dyn Storage>>) -> Arc<dyn Storage>,
    block_bytes: [u32; 2],
) -> (Drive, Vec<Server>) {
    let (mut members, mut servers) = (Vec::new(), Vec::new());
    for block_bytes in block_bytes {
        let Drive { storage, _server, .. } = drive(patterned(), block_bytes, "", "");
        members.push(Arc::new(storage) as Arc<dyn Storage>);
        servers.push(_server);
    }
    (serve(join(members), 4096, "", ""), servers)
}

#[test]
fn controllers_striped_behind_one_namespace() {
    let stripes = |members| Arc::new(Striped::new(members, 16 << 10).unwrap()) as Arc<dyn Storage>;
    let (front, _servers) = behind_one_namespace(stripes, [512, 4096]);
    assert_eq!(front.storage.geometry().bytes, 2 * BYTES as u64);
    conformance::run(&front.storage);
}

#[test]
fn controllers_replicated_behind_one_namespace() {
    let replicas = |members| Arc::new(Replicated::new(members).unwrap()) as Arc<dyn Storage>;
    let (front, _servers) = behind_one_namespace(replicas, [512, 512]);
    assert_eq!(front.storage.geometry().bytes, BYTES as u64);
    conformance::run(&front.storage);
}

#[test]
fn a_read_only_namespace() {
    let drive = drive(patterned().with_read_only(), 512, "", "");
    assert!(drive.storage.geometry().read_only);
    conformance::run_read_only(&drive.storage, 1);
}

#[test]
fn the_geometry_is_the_drives_and_the_text_names_it() {
    let drive = drive(patterned(), 4096, "", "");
    let geometry = drive.storage.geometry();
    assert_eq!((geometry.bytes, geometry.block_bytes), (BYTES as u64, 4096));
    let text = drive.storage.explain();
    assert!(text.contains("NVMe") && text.contains("namespace 1"), "{text}");
}

#[test]
fn a_namespace_that_is_not_there_is_named() {
    let drive = drive(patterned(), 512, "", "");
    let options = NvmeOptions { nsid: Some(Nsid(9)), ..NvmeOptions::default() };
    let Err(error) = NvmeStorage::over(drive.storage.driver().clone(), &options) else {
        panic!("there is no namespace 9");
    };
    assert!(error.to_string().contains("namespace 9"), "{error}");
}

struct Reader {
    queue: Box<dyn StorageQueue>,
    memory: Region,
    bytes: usize,
}

impl Reader {
    fn new(storage: &NvmeStorage, depth: u32, bytes: usize, registered: bool) -> Self {
        let slots = usize::try_from(depth).unwrap();
        let memory = Region::map_anonymous(slots * bytes, MemoryKind::Host).unwrap();
        let registered = if registered { vec![memory.clone()] } else { Vec::new() };
        let queue = storage.open_queue(&QueueOptions { depth, registered }).unwrap();
        Self { queue, memory, bytes }
    }

    /// Reads `count` times, the queue as full as it goes; all that succeeds is checked.
    fn read(&mut self, count: u64) -> Vec<Completion> {
        let slots = self.memory.len_bytes() / self.bytes;
        let mut free: Vec<usize> = (0..slots).collect();
        let mut slot_of = vec![0; usize::try_from(count).unwrap()];
        let (mut next, mut all, mut found) = (0u64, Vec::new(), Vec::new());
        let until = Instant::now() + Duration::from_secs(60);
        while all.len() < slot_of.len() {
            while next < count && !free.is_empty() {
                let slot = free.pop().unwrap();
                let memory_offset = slot * self.bytes;
                self.memory.fill(memory_offset, self.bytes, 0xee);
                let (memory, bytes) = (&self.memory, u32::try_from(self.bytes).unwrap());
                let offset = place(next, self.bytes);
                let request =
                    Request { token: next, op: Op::Read, offset, bytes, memory, memory_offset };
                match self.queue.try_submit(request) {
                    Ok(()) => {}
                    Err(Rejected::QueueFull) => panic!("a queue of its depth is not full"),
                    Err(Rejected::Invalid(status)) => panic!("{status}"),
                }
                slot_of[usize::try_from(next).unwrap()] = slot;
                next += 1;
            }
            self.queue.wait_for_completion(Duration::from_millis(10));
            self.queue.poll(&mut found);
            for one in found.drain(..) {
                let slot = slot_of[usize::try_from(one.token).unwrap()];
                if one.status.is_success() {
                    assert_eq!(one.bytes as usize, self.bytes);
                    let address = place(one.token, self.bytes);
                    let (at, bytes) = (slot * self.bytes, self.bytes);
                    assert_eq!(pattern::check_region(&self.memory, at, bytes, address, 1), Ok(()));
                }
                free.push(slot);
                all.push(one);
            }
            assert!(Instant::now() < until, "{} of {count}", all.len());
        }
        all.sort_by_key(|one| one.token);
        let tokens: Vec<u64> = all.iter().map(|one| one.token).collect();
        assert_eq!(tokens, (0..count).collect::<Vec<_>>(), "each ends once");
        all
    }
}

fn place(token: u64, bytes: usize) -> u64 {
    let places = (BYTES / bytes) as u64;
    token * 7 % places * bytes as u64
}

fn ended_well(all: &[Completion]) -> usize {
    all.iter().filter(|one| one.status.is_success()).count()
}

#[test]
fn transfers_beyond_the_drives_limit_are_split() {
    let drive = drive(patterned(), 512, "", "");
    let mut reader = Reader::new(&drive.storage, 4, 1 << 19, true);
    assert_eq!(ended_well(&reader.read(40)), 40);
    let counters = reader.queue.counters();
    assert_eq!(counters.ios_at_device, 160, "four commands of 128 KiB each");
    assert_eq!(counters.bytes_read, 40 << 19);
    assert_eq!(counters.completions_polled, 160);
    assert!(counters.doorbells > 0 && counters.syscalls == 0);
}

#[test]
fn memory_that_the_drive_cannot_reach_is_bounced() {
    let drive = drive(patterned(), 512, "", "");
    let mut reader = Reader::new(&drive.storage, 8, 12288, false);
    assert_eq!(ended_well(&reader.read(200)), 200);
}

#[test]
fn faults_of_the_drive_surface_one_for_one() {
    for (faults, wanted) in [
        ("error:n=20,status=2/81", Status::UNRECOVERED_READ_ERROR),
        ("lost:n=20", Status::ABORTED_BY_HOST),
        ("late:n=20,ms=5000", Status::ABORT_REQUESTED),
    ] {
        let drive = drive(patterned(), 512, faults, "");
        let mut reader = Reader::new(&drive.storage, 32, 4096, true);
        let all = reader.read(1000);
        assert_eq!(drive.injector.injected_total(), 20, "{faults}");
        let failed: Vec<_> = all.iter().filter(|one| !one.status.is_success()).collect();
        assert_eq!(failed.len(), 20, "{faults}: {failed:?}");
        assert!(failed.iter().all(|one| one.status.is(wanted)), "{faults}: {failed:?}");
        assert_eq!(ended_well(&reader.read(100)), 100, "usable afterwards");
    }
}

#[test]
fn a_request_in_pieces_ends_with_the_error_of_one() {
    let drive = drive(patterned(), 512, "error:n=1,every=6,status=2/81", "");
    let mut reader = Reader::new(&drive.storage, 1, 1 << 19, true);
    let all = reader.read(4);
    assert!(all[1].status.is(Status::UNRECOVERED_READ_ERROR), "{:?}", all[1]);
    assert_eq!((all[1].bytes, ended_well(&all)), (0, 3));
}

#[test]
fn duplicates_and_resets_harm_nobody() {
    for faults in ["duplicate:n=20", "reset:n=3,every=100"] {
        let drive = drive(patterned(), 512, faults, "");
        let mut reader = Reader::new(&drive.storage, 32, 4096, true);
        assert_eq!(ended_well(&reader.read(1000)), 1000, "{faults}");
        assert!(drive.injector.injected_total() >= 3, "{faults}");
    }
}

#[test]
fn a_shut_down_drive_refuses_and_ends_what_it_has() {
    let drive = drive(patterned(), 512, "stuck:n=1,every=1", "");
    let mut reader = Reader::new(&drive.storage, 4, 4096, true);
    let (memory, memory_offset) = (&reader.memory, 0);
    let request = Request { token: 5, op: Op::Read, offset: 0, bytes: 4096, memory, memory_offset };
    reader.queue.try_submit(request).unwrap();
    let mut found = Vec::new();
    reader.queue.poll(&mut found);
    drive.storage.wait_shut_down(Duration::from_secs(10)).unwrap();
    reader.queue.wait_for_completion(Duration::from_secs(5));
    reader.queue.poll(&mut found);
    assert_eq!(found.len(), 1);
    assert!(!found[0].status.is_success() && found[0].token == 5, "{found:?}");
    let options = QueueOptions { depth: 4, registered: Vec::new() };
    assert!(drive.storage.open_queue(&options).is_err());
}

#[test]
fn threads_with_queues_of_their_own_survive_everything_together() {
    let faults = "reset:n=3,every=150;lost:n=6,every=301;stuck:n=2,every=702;\
                  duplicate:n=10,every=100;late:n=10,every=99,ms=5000";
    let drive = drive(patterned(), 512, faults, "");
    let failed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut reader = Reader::new(&drive.storage, 8, 4096, true);
                    let all = reader.read(1000);
                    all.len() - ended_well(&all)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no reader panics")).sum()
    });
    assert!(drive.injector.injected_total() >= 29, "{}", drive.injector.injected_total());
    // Lost and late ones from before the last reset go again and succeed; a stuck queue, and two
    // resets close together, fail what they hold.
    assert!((5..=6 + 10 + 2 * 8 + 3 * 8).contains(&failed), "{failed} failed");
    let mut reader = Reader::new(&drive.storage, 8, 4096, true);
    assert_eq!(ended_well(&reader.read(200)), 200);
}
