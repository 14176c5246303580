use super::*;

fn parse(line: &str) -> Result<Options> {
    parse_options(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
}

#[test]
fn arguments() {
    let with = |stage: &str, config: Option<&str>, state_dir: Option<&str>| Options {
        stage: stage.to_owned(),
        config: config.map(PathBuf::from),
        state_dir: state_dir.map(PathBuf::from),
    };
    assert_eq!(parse("poststop").unwrap(), with("poststop", None, None));
    assert_eq!(parse("create-runtime --config /c").unwrap(), with("create-runtime", Some("/c"), None));
    assert_eq!(parse("--state-dir /s prestart").unwrap(), with("prestart", None, Some("/s")));
    for invalid in ["", "--config", "--config /c", "create-runtime --config relative", "start", "create-runtime extra", "--help"] {
        assert!(parse(invalid).unwrap_err().to_string().contains("expected vgpu-hook create-runtime"), "{invalid}");
    }
}

#[test]
fn states_of_several_runtimes() {
    for text in [
        r#"{"ociVersion":"1.0.2","id":"c1","status":"creating","pid":7,"bundle":"/b","annotations":{}}"#,
        r#"{"ociVersion":"1.0.2","id":"c1","status":"","bundle":"/b","annotations":null}"#,
        r#"{"id":"c1","pid":0,"bundle":"/b","root":"/r"}"#,
        r#"{"id":"c1","bundle":"/b"}"#,
    ] {
        let state = parse_state(text).unwrap();
        assert_eq!((state.id().as_str(), state.bundle().as_path()), ("c1", Path::new("/b")));
    }
    for text in ["", "[]", "{}", r#"{"id":"c1"}"#, r#"{"bundle":"/b"}"#, r#"{"id":1,"bundle":"/b"}"#] {
        assert!(parse_state(text).is_err(), "{text}");
    }
}

#[test]
fn version_and_help_are_answers() {
    let text = |arg: &str| about(&arg.into());
    assert_eq!(text("--version").unwrap(), format!("vgpu-hook {}", env!("CARGO_PKG_VERSION")));
    assert!(text("--help").unwrap().ends_with(USAGE));
    assert_eq!(text("poststop"), None);
}
