//! A buffer that is registered, and named by a request, while a side core is between looking for new
//! registrations and fetching: the request must not be refused for the older tables' sake. (It once was,
//! on a busy machine: lanes of a kernel that started right after the registration got `BAD_BUFFER`.)

use std::sync::{Arc, Mutex};

use abi::ring::{OP_READ, Request};
use abi::status;
use gpu::{SimulatedGpu, SimulatedOptions};
use sidecore::{Engine, Hooks, Moment, Rights, RingConfig, Stepped};
use storage::MemoryStorage;
use testkit::pattern;
use testkit::submitter::Submitter;

type Act = Box<dyn FnOnce() + Send>;

#[test]
fn what_is_registered_before_the_request_is_known_to_its_check() {
    let act: Arc<Mutex<Option<Act>>> = Arc::default();
    let todo = Arc::clone(&act);
    let hooks = Hooks::new(move |at| {
        let act = if at == Moment::BeforeFetch { todo.lock().unwrap().take() } else { None };
        if let Some(act) = act {
            act();
        }
    });
    let gpu = Arc::new(SimulatedGpu::new(SimulatedOptions::default()));
    let made = Engine::builder(gpu).side_cores(1).hooks(hooks).start_stepped().unwrap();
    let Stepped { engine, mut side_cores, .. } = made;
    let engine = Arc::new(engine);
    let memory = MemoryStorage::new(4096).unwrap();
    pattern::fill_region(memory.region(), 0, 4096, 0, 1);
    let source = engine.register_source(Arc::new(memory), Rights::READ).unwrap();
    let config = RingConfig { depth: 8, records: 8, ..RingConfig::default() };
    let ring = engine.create_ring(config).unwrap();
    side_cores[0].step(1);
    let device = engine.gpu().allocate_device(4096).unwrap();
    let window = device.window.clone().unwrap();
    let submitter = Arc::new(Mutex::new(Submitter::new(&ring)));
    let (asks, registers) = (Arc::clone(&submitter), Arc::clone(&engine));
    *act.lock().unwrap() = Some(Box::new(move || {
        let buffer = registers.register_buffer(device, Rights::READ).unwrap();
        let request = Request {
            opcode: OP_READ,
            source: source.id(),
            source_offset: 0,
            buffer: buffer.id(),
            buffer_offset: 0,
            length: 4096,
            record: 0,
            record_turn: 0,
            limit_ms: 0,
        };
        asks.lock().unwrap().submit(request).unwrap();
    }));
    let end = (2..20).find_map(|now_ns| {
        side_cores[0].step(now_ns);
        submitter.lock().unwrap().completion(0)
    });
    assert_eq!(end.map(|end| end.status()), Some(status::SUCCESS));
    pattern::check_region(&window, 0, 4096, 0, 1).unwrap();
    // Counters are published in a step that finds nothing to do.
    side_cores[0].step(100);
    assert_eq!((ring.counters().requests, ring.counters().refused), (1, 0));
}
