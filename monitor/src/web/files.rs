//! Files of the page, which are part of the program.

/// File of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// Content type.
    pub content_type: &'static str,
    /// Content.
    pub text: &'static str,
}

/// Returns the file at a path of the server.
#[must_use]
pub fn file(path: &str) -> Option<File> {
    let (content_type, text) = match path {
        "/" => ("text/html; charset=utf-8", include_str!("../../web/page.html")),
        "/page/style.css" => ("text/css; charset=utf-8", include_str!("../../web/style.css")),
        "/page/page.js" => ("text/javascript; charset=utf-8", include_str!("../../web/page.js")),
        "/page/draw.js" => ("text/javascript; charset=utf-8", include_str!("../../web/draw.js")),
        "/page/icon.svg" => ("image/svg+xml", include_str!("../../web/icon.svg")),
        _ => return None,
    };
    Some(File { content_type, text })
}
