use super::*;

#[test]
fn root_file_systems_of_bundles() {
    let dir = tempfile::tempdir().unwrap();
    let load = |text: &str| {
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        Bundle::load(dir.path(), None)
    };
    let real = dir.path().canonicalize().unwrap();
    assert_eq!(load(r#"{"root":{"path":"rootfs"}}"#).unwrap().rootfs().unwrap(), real.join("rootfs"));
    assert_eq!(load(r#"{"root":{"path":"/r"}}"#).unwrap().rootfs().unwrap(), Path::new("/r"));
    assert!(load("{}").unwrap().rootfs().unwrap_err().to_string().contains("root.path"));
    assert!(load("{").unwrap_err().to_string().contains("config.json: EOF"));
    assert!(Bundle::load(&dir.path().join("no"), None).unwrap_err().to_string().contains("cannot open the bundle"));
}
