//! What a run says: rows, and the table, CSV and HTML made of them.

mod bars;
mod csv;
mod html;
mod output;
mod page;
mod row;
mod svg;
mod sweep;
mod table;

pub use csv::csv;
pub use html::{Context, html};
pub use output::{ReportFile, default_files};
pub use row::Row;
pub use sweep::{artifact_csv, artifact_name, artifact_plot, comparison, standing};
pub use table::{details, lines, table};
