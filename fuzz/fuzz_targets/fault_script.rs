//! Fault scripts: any text parses or is refused with a reason, and what was parsed prints as a
//! script of the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use storage::faults::FaultScript;

fuzz_target!(|text: &str| {
    match text.parse::<FaultScript>() {
        Ok(script) => {
            let again = script.to_string().parse::<FaultScript>();
            assert_eq!(again.as_ref(), Ok(&script), "printing changed the meaning");
            for kind in script.kinds() {
                assert!(text.contains(kind.name()), "{kind} is not in the text");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
