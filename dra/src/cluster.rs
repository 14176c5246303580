//! What both programs need of the cluster and of the machine: a client, and the word to stop.

use std::error::Error;
use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// A client for the cluster: by this file, else as pods have it, else as people have it.
///
/// # Errors
/// The configuration cannot be read.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client, String> {
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path).map_err(|error| format!("{}: {error}", path.display()))?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .map_err(|error| format!("{}: {error}", path.display()))?
        }
        None => Config::infer().await.map_err(|error| error.to_string())?,
    };
    Client::try_from(config).map_err(|error| error.to_string())
}

/// What is wrong, in one line: what the API server says of it, or why it cannot be asked.
#[must_use]
pub fn describe(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()).map(ToString::to_string) {
        // Some say what they come from, too.
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;

    #[test]
    fn what_the_api_server_says_is_said_once() {
        let status = kube::core::Status::failure("nodes \"a\" is forbidden", "Forbidden").with_code(403);
        assert_eq!(describe(&kube::Error::Api(status.boxed())), "nodes \"a\" is forbidden");
    }

    #[tokio::test]
    async fn why_it_cannot_be_asked_is_said_to_its_end() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let client = Client::try_from(Config::new(format!("http://{free}").parse().unwrap())).unwrap();
        let error = Api::<Node>::all(client).get("a").await.unwrap_err();
        let why = describe(&error);
        assert!(why.to_lowercase().contains("refused"), "{why}");
    }
}
