//! Rows as CSV: one header line, one line a row, fields as in the JSON.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::report::Row;

/// Writes all rows.
///
/// # Errors
/// None in practice: a row that is no flat object.
pub fn csv(rows: &[Row]) -> Result<String> {
    let mut out = String::new();
    for (i, row) in rows.iter().enumerate() {
        // Through text, because serde_json's own map would forget the order of the fields.
        let fields = fields(row)?;
        if i == 0 {
            let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
            out.push_str(&names.join(","));
            out.push('\n');
        }
        let values: Vec<String> = fields.iter().map(|(_, value)| cell(value)).collect();
        out.push_str(&values.join(","));
        out.push('\n');
    }
    Ok(out)
}

/// The fields of a row in their order.
fn fields(row: &Row) -> Result<Vec<(String, Value)>> {
    let text = serde_json::to_string(row).context("a row as JSON")?;
    let Value::Object(map) = serde_json::from_str(&text).context("a row as JSON")? else {
        bail!("a row is an object");
    };
    let mut fields: Vec<(String, Value)> = map.into_iter().collect();
    fields.sort_by_key(|(name, _)| text.find(&format!("\"{name}\":")));
    Ok(fields)
}

fn cell(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_row_with_the_fields_in_order() {
        let row = Row { path: "ring".into(), drive: "a, \"b\"".into(), ..Row::default() };
        let text = csv(&[row.clone(), row]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with(
            "path,route,op,gpu,drive,io_bytes,ios,ios_at_device,ios_verified,errors,seconds,iops,\
             bytes_per_s,latency_ns_p50,latency_ns_p99,cpu_s,side_cores,sms,lanes,"
        ));
        assert!(lines[1].starts_with("ring,,,,\"a, \"\"b\"\"\",0,"));
    }
}
