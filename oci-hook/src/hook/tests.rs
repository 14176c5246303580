//! How the hook is called.

use super::*;

fn read(line: &str) -> Result<Options> {
    options(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
}

#[test]
fn arguments() {
    let with = |stage: &str, config: Option<&str>, state_dir: Option<&str>| Options {
        stage: stage.to_owned(),
        config: config.map(PathBuf::from),
        state_dir: state_dir.map(PathBuf::from),
    };
    assert_eq!(read("poststop").unwrap(), with("poststop", None, None));
    assert_eq!(read("create-runtime --config /c").unwrap(), with("create-runtime", Some("/c"), None));
    assert_eq!(read("--state-dir /s prestart").unwrap(), with("prestart", None, Some("/s")));
    for bad in ["", "--config", "--config /c", "create-runtime --config relative", "start", "create-runtime extra", "--help"] {
        assert!(read(bad).unwrap_err().to_string().contains("accepted is vgpu-hook create-runtime"), "{bad}");
    }
}

#[test]
fn states_as_runtimes_tell_them() {
    for text in [
        r#"{"ociVersion":"1.0.2","id":"c1","status":"creating","pid":7,"bundle":"/b","annotations":{}}"#,
        r#"{"id":"c1","pid":0,"bundle":"/b","root":"/r"}"#,
        r#"{"id":"c1","bundle":"/b"}"#,
    ] {
        let told: Told = serde_json::from_str(text).unwrap();
        assert_eq!((told.id.as_str(), told.bundle.as_path()), ("c1", Path::new("/b")));
    }
}
