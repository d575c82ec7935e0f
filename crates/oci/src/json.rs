use oci_spec::runtime::Spec;
use serde_json::Value;

/// The bytes of a `config.json`. The same spec gives the same bytes: the library's maps and sets
/// have no order of their own, so keys and capabilities are sorted here.
pub fn to_json(spec: &Spec) -> serde_json::Result<Vec<u8>> {
    let mut value = serde_json::to_value(spec)?;
    let sets = value.pointer_mut("/process/capabilities").and_then(Value::as_object_mut);
    for set in sets.into_iter().flat_map(|sets| sets.values_mut()).filter_map(Value::as_array_mut) {
        set.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
    }
    serde_json::to_vec(&value)
}
