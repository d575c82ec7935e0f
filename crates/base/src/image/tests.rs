use proptest::prelude::*;

use super::*;

const HEX: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

/// `input`, canonical, familiar; `#` stands for a sha256 digest.
#[track_caller]
fn good(input: &str, canonical: &str, familiar: &str) {
    let fill = |text: &str| text.replace('#', &format!("sha256:{HEX}"));
    let parsed: ImageRef = fill(input).parse().unwrap_or_else(|e| panic!("{input}: {e}"));
    assert_eq!(parsed.to_string(), fill(canonical), "canonical form of {input}");
    assert_eq!(parsed.familiar(), fill(familiar), "familiar form of {input}");
}

#[track_caller]
fn bad(input: &str, want: &ImageRefError) {
    assert_eq!(input.parse::<ImageRef>().as_ref(), Err(want), "{input:?}");
}

#[test]
fn docker_hub_is_filled_in() {
    good("busybox", "docker.io/library/busybox:latest", "busybox:latest");
    good("busybox:1.36", "docker.io/library/busybox:1.36", "busybox:1.36");
    good("library/busybox", "docker.io/library/busybox:latest", "busybox:latest");
    good("docker.io/busybox", "docker.io/library/busybox:latest", "busybox:latest");
    good("index.docker.io/busybox", "docker.io/library/busybox:latest", "busybox:latest");
    good("user/app", "docker.io/user/app:latest", "user/app:latest");
    good("docker.io/user/app", "docker.io/user/app:latest", "user/app:latest");
    good("library/a/b", "docker.io/library/a/b:latest", "library/a/b:latest");
    good("docker.io/library", "docker.io/library/library:latest", "library:latest");
    good("docker.io", "docker.io/library/docker.io:latest", "docker.io:latest");
    good("localhost", "docker.io/library/localhost:latest", "localhost:latest");
}

#[test]
fn the_first_part_is_a_host_if_it_looks_like_one() {
    good("quay.io/a/b", "quay.io/a/b:latest", "quay.io/a/b:latest");
    good("quay.io/b", "quay.io/b:latest", "quay.io/b:latest");
    good("localhost/x", "localhost/x:latest", "localhost/x:latest");
    good("localhost:5000/x:1", "localhost:5000/x:1", "localhost:5000/x:1");
    good("test:5000/x", "test:5000/x:latest", "test:5000/x:latest");
    good("Registry/x", "Registry/x:latest", "Registry/x:latest");
    good("EXAMPLE.com/x", "EXAMPLE.com/x:latest", "EXAMPLE.com/x:latest");
    good("10.0.0.1:80/x", "10.0.0.1:80/x:latest", "10.0.0.1:80/x:latest");
    good("[::1]:5000/x", "[::1]:5000/x:latest", "[::1]:5000/x:latest");
    good("[fe80::1]/x:t", "[fe80::1]/x:t", "[fe80::1]/x:t");
    good("xn--n3h.com/x", "xn--n3h.com/x:latest", "xn--n3h.com/x:latest");
    // Without its registry this one would name another.
    good("docker.io/a.b/c", "docker.io/a.b/c:latest", "docker.io/a.b/c:latest");
    good("docker.io/localhost/c", "docker.io/localhost/c:latest", "docker.io/localhost/c:latest");
}

#[test]
fn digests_need_no_tag_and_keep_one() {
    good("busybox@#", "docker.io/library/busybox@#", "busybox@#");
    good("busybox:1@#", "docker.io/library/busybox:1@#", "busybox:1@#");
    good("localhost:5000/x@#", "localhost:5000/x@#", "localhost:5000/x@#");
    good("localhost:5000/x:1@#", "localhost:5000/x:1@#", "localhost:5000/x:1@#");
}

#[test]
fn separators_in_paths() {
    for path in ["a-b", "a--b", "a---b", "a_b", "a__b", "a.b", "a1/b2/c3", "0"] {
        let name = format!("quay.io/{path}");
        good(&name, &format!("{name}:latest"), &format!("{name}:latest"));
    }
    for path in ["a___b", "a..b", "a._b", "a.-b", "-a", "a-", "_a", "a_", ".a", "a.", "a//b", "/a"]
    {
        bad(&format!("quay.io/{path}"), &ImageRefError::Path(path.into()));
    }
    bad("quay.io/", &ImageRefError::Path(String::new()));
    bad("quay.io/a b", &ImageRefError::Path("a b".into()));
    bad("quay.io/é", &ImageRefError::Path("é".into()));
}

#[test]
fn names_that_are_refused() {
    bad("", &ImageRefError::Empty);
    bad(":tag", &ImageRefError::Empty);
    bad(HEX, &ImageRefError::IdLike(HEX.into()));
    bad("Busybox", &ImageRefError::UpperCase("Busybox".into()));
    bad("user/App:Tag", &ImageRefError::UpperCase("user/App".into()));
    bad("a.com/B", &ImageRefError::UpperCase("B".into()));
    bad("-a.com/b", &ImageRefError::Registry("-a.com".into()));
    bad("a..com/b", &ImageRefError::Registry("a..com".into()));
    bad("under_score.com/b", &ImageRefError::Registry("under_score.com".into()));
    bad("a.com:/b", &ImageRefError::Registry("a.com:".into()));
    bad("a.com:x/b", &ImageRefError::Registry("a.com:x".into()));
    bad("[]:1/b", &ImageRefError::Registry("[]:1".into()));
    bad("[::1/b:1", &ImageRefError::Registry("[::1".into()));
    bad("busybox:", &ImageRefError::Tag(String::new()));
    bad("busybox:-a", &ImageRefError::Tag("-a".into()));
    bad("busybox:a+b", &ImageRefError::Tag("a+b".into()));
    bad("https://a.com/b", &ImageRefError::Registry("https:".into()));
}

#[test]
fn bad_digests_say_why() {
    let error = "busybox@sha256:12".parse::<ImageRef>().unwrap_err();
    assert_eq!(
        crate::Chain(&error).to_string(),
        "image name \"busybox@sha256:12\": sha256 digest \"12\" is not 64 lower-case hexadecimal digits"
    );
    assert!("busybox@".parse::<ImageRef>().is_err());
    assert!(format!("busybox@sha256:{HEX}@sha256:{HEX}").parse::<ImageRef>().is_err());
}

#[test]
fn lengths() {
    let path = |n: usize| format!("quay.io/{}", "a".repeat(n));
    assert!(path(255).parse::<ImageRef>().is_ok());
    bad(&path(256), &ImageRefError::TooLong(256));
    // "library/" counts.
    bad(&"a".repeat(248), &ImageRefError::TooLong(256));
    assert!(format!("x:{}", "t".repeat(128)).parse::<ImageRef>().is_ok());
    bad(&format!("x:{}", "t".repeat(129)), &ImageRefError::Tag("t".repeat(129)));
}

#[test]
fn queries() {
    let digest: Digest = format!("sha256:{HEX}").parse().unwrap();
    let name = |text: &str| text.parse::<ImageRef>().unwrap();
    let check = |text: &str, want| assert_eq!(text.parse::<ImageQuery>(), Ok(want), "{text}");
    let maybe = |text: &str, id_prefix: &str| ImageQuery::NameOrPrefix {
        name: name(text),
        id_prefix: id_prefix.into(),
    };
    check(HEX, ImageQuery::Id(digest.clone()));
    check(digest.as_str(), ImageQuery::Id(digest.clone()));
    check("beef", maybe("beef", "beef"));
    check("sha256:beef", maybe("sha256:beef", "beef"));
    check("beef:1", ImageQuery::Name(name("beef:1")));
    check("busybox", ImageQuery::Name(name("busybox")));
    assert_eq!("Nope".parse::<ImageQuery>(), Err(ImageRefError::UpperCase("Nope".into())));
}

#[test]
fn serde_is_canonical_text() {
    let parsed: ImageRef = serde_json::from_str("\"busybox\"").unwrap();
    let json = serde_json::to_string(&parsed).unwrap();
    assert_eq!(json, "\"docker.io/library/busybox:latest\"");
    assert!(serde_json::from_str::<ImageRef>("\"UPPER\"").is_err());
}

proptest! {
    #[test]
    fn both_forms_parse_back(
        text in "([a-zA-Z0-9.-]{1,9}(:[0-9]{1,4})?/)?[a-z0-9]{1,5}([._-][a-z0-9]{1,3}){0,2}(/[a-z0-9.]{1,4}){0,2}(:[a-zA-Z0-9_.-]{1,5})?",
        pinned: bool,
    ) {
        let text = if pinned { format!("{text}@sha256:{HEX}") } else { text };
        if let Ok(image) = text.parse::<ImageRef>() {
            prop_assert_eq!(image.to_string().parse::<ImageRef>(), Ok(image.clone()));
            prop_assert_eq!(image.familiar().parse::<ImageRef>(), Ok(image.clone()));
            prop_assert!(image.tag().is_some() || image.digest().is_some());
        }
    }

    #[test]
    fn no_text_panics(text: String, near in "[a-zA-Z0-9:/@._\\[\\]-]{0,40}") {
        for text in [text, near] {
            let _ = text.parse::<ImageRef>();
            let _ = text.parse::<ImageQuery>();
            let _ = text.parse::<Repository>();
        }
    }
}
