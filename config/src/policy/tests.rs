//! The policy file.

use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn an_empty_file_has_the_defaults() {
    assert_eq!(Policy::parse(""), Ok(Policy::default()));
    assert_eq!(Policy::default().intercept, Intercept::Both);
}

#[test]
fn all_keys_are_read() {
    let text = r#"
        state_dir = "/s"
        library = "/l.so"
        hook = "/h"
        runtimes = ["crun", "/opt/runc"]
        intercept = "both"
        engine = "crio"
        extra_device_nodes = ["/dev/simgpu"]
        without_request = "refuse"
        over_ceiling = "clamp"
        on_violation = "kill"
        violation_grace_seconds = 3
        privileged = "refuse"
        without_glibc = "refuse"
        shared_claims = "start"
        [defaults]
        memory = "4Gi"
        cores = 30
        cores_soft = 60
        [ceilings]
        memory = "8Gi"
        memory_percent = 50
        cores = 80
        cores_soft = 90
        oversubscribe_percent = 0
        priority = 1
        [opt_out]
        anyone = false
        namespaces = ["kube-system"]
        [driver_capabilities]
        allow = ["compute", "utility", "video"]
        otherwise = "refuse"
        [overcommit]
        enabled = true
    "#;
    let policy = Policy::parse(text).unwrap();
    assert_eq!(policy.state_dir(Some(1000)), Path::new("/s"));
    assert_eq!((policy.intercept.preloads(), policy.intercept.replaces()), (true, true));
    assert_eq!((policy.engine, Policy::default().engine), (Engine::Crio, Engine::Auto));
    assert_eq!(
        policy.defaults,
        Defaults { memory: Bytes::new(4 << 30), memory_percent: None, cores: Percent::new(30), cores_soft: Percent::new(60) }
    );
    assert_eq!(
        (policy.ceilings.memory, policy.ceilings.memory_percent, policy.ceilings.priority),
        (Bytes::new(8 << 30), Percent::new(50), 1)
    );
    assert!(policy.opt_out.allows(Some("kube-system")) && !policy.opt_out.allows(Some("default")) && !policy.opt_out.allows(None));
    assert_eq!(policy.driver_capabilities.otherwise, Otherwise::Refuse);
    assert_eq!([policy.privileged, policy.without_glibc], [Admission::Refuse; 2]);
    assert_eq!([policy.overcommit.enabled, Policy::default().overcommit.enabled], [true, false]);
    assert_eq!([policy.shared_claims, Policy::default().shared_claims], [Admission::Start, Admission::Refuse]);
}

#[test]
fn invalid_files_are_refused() {
    let cases = [
        ("an unknown key", "owner = \"/s\"", "line 1: owner = \"/s\": unknown field `owner`, expected one of"),
        ("a misspelt key", "statedir = \"/s\"", "line 1: statedir = \"/s\": unknown field `statedir`: did you mean state_dir?"),
        ("a misspelt key in a table", "[ceilings]\ncore = 3", "line 2: core = 3: unknown field `core`: did you mean cores?"),
        ("all known keys are listed", "owner = 1", "`violation_grace_seconds`"),
        ("an unknown key in a table", "[defaults]\nmem = \"1g\"", "line 2: mem"),
        ("a value of another type", "runtimes = \"runc\"", "line 1: runtimes = \"runc\""),
        ("an unknown variant", "\nintercept = \"sometimes\"", "line 2: intercept = \"sometimes\": unknown variant"),
        ("memory without a unit", "[defaults]\nmemory = \"4096\"", "a quantity such as 4Gi"),
        ("zero memory", "[ceilings]\nmemory = \"0g\"", "a quantity such as 4Gi"),
        ("above 100 percent", "[ceilings]\ncores = 101", "from 1 to 100"),
        ("percent with a sign", "[ceilings]\ncores = \"30%\"", "from 1 to 100 (percent): did you mean 30?"),
        ("percent as a fraction", "[ceilings]\ncores = 0.3", "from 1 to 100 (percent): did you mean 30?"),
        ("memory in GB", "[ceilings]\nmemory = \"4GB\"", "Gi, Ti): did you mean 4Gi?"),
        ("negative percent", "[ceilings]\ncores = -1", "from 1 to 100"),
        ("a relative path", "library = \"libvgpu.so\"", "libvgpu.so: expected an absolute path"),
        ("no runtimes", "runtimes = []", "at least one"),
        ("an unknown priority", "[ceilings]\npriority = 2", "expected 0 or 1"),
        ("not TOML", "what = = is", "line 1"),
    ];
    for (description, text, expected) in cases {
        let message = Policy::parse(text).unwrap_err();
        assert!(message.contains(expected), "{description}: {message}");
        assert!(!message.chars().any(char::is_control), "{description}: {message:?}");
    }
}

#[test]
fn unreadable_and_world_writable_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    let message = Policy::load(Some(&path)).unwrap_err().to_string();
    assert!(message.contains("cannot read") && message.contains("config.toml"), "a named file must exist: {message}");
    std::fs::write(&path, "intercept = \"both\"").unwrap();
    assert_eq!(Policy::load(Some(&path)).unwrap().intercept, Intercept::Both);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(Policy::load(Some(&path)).unwrap_err().to_string().contains("world-writable"));
    assert!(Policy::load(Some(dir.path())).unwrap_err().to_string().contains("cannot read"));
}

#[test]
fn runtimes_are_read_from_invalid_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    let runtimes = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Policy::runtimes_even_if_invalid(Some(&path))
    };
    assert_eq!(runtimes("runtimes = [\"crun\"]\nunknown = 1"), [Path::new("crun")]);
    assert_eq!(runtimes("= = ="), Policy::default().runtimes);
    assert_eq!(runtimes("runtimes = []"), Policy::default().runtimes);
    assert_eq!(Policy::runtimes_even_if_invalid(Some(dir.path())), Policy::default().runtimes);
}

#[test]
fn default_state_directories() {
    let policy = Policy::default();
    assert_eq!(policy.state_dir(None), Path::new("/run/vgpu"));
    assert_eq!(policy.state_dir(Some(1000)), Path::new("/run/user/1000/vgpu"));
}
