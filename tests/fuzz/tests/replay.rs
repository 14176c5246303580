//! Runs the fuzz targets on the stored inputs, without a fuzzer.

use std::path::{Path, PathBuf};

use vgpu_fuzz::TARGETS;

/// Returns the files below a folder of inputs for a target.
fn inputs(kind: &str, target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(target);
    let entries = std::fs::read_dir(&folder).map(|entries| entries.map(|entry| entry.unwrap().path()).collect());
    entries.unwrap_or_default()
}

#[test]
fn stored_inputs_have_right_answers() {
    for (name, target) in TARGETS {
        for kind in ["corpus", "regressions"] {
            let inputs = inputs(kind, name);
            assert!(kind != "corpus" || !inputs.is_empty(), "{name} has no corpus");
            for path in inputs {
                println!("{}", path.display());
                target(&std::fs::read(&path).unwrap());
            }
        }
    }
}

#[test]
fn each_folder_of_inputs_and_each_program_has_a_target() {
    for kind in ["corpus", "regressions", "libfuzzer/fuzz_targets"] {
        // There may be no regressions.
        let Ok(entries) = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(kind)) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_str().unwrap();
            assert!(TARGETS.iter().any(|(name, _)| *name == stem), "{}", path.display());
        }
    }
}
