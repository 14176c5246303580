//! Access to the cluster: the client and its errors.

use std::error::Error;
use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Returns a client configured by this kubeconfig; without one, by the pod's service account or else by the user's kubeconfig.
///
/// # Errors
/// The configuration cannot be read or is malformed.
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

/// Describes an error in one line: the API server's message, or else the chain of causes why it could not be reached.
#[must_use]
pub fn describe(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()).map(ToString::to_string) {
        // Some errors already include their cause.
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
    fn api_errors_are_described_once() {
        let status = kube::core::Status::failure("nodes \"a\" is forbidden", "Forbidden").with_code(403);
        assert_eq!(describe(&kube::Error::Api(status.boxed())), "nodes \"a\" is forbidden");
    }

    #[tokio::test]
    async fn connection_errors_are_described_with_their_cause() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let client = Client::try_from(Config::new(format!("http://{free}").parse().unwrap())).unwrap();
        let error = Api::<Node>::all(client).get("a").await.unwrap_err();
        let description = describe(&error);
        assert!(description.to_lowercase().contains("refused"), "{description}");
    }
}
