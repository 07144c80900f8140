"""REST and the page that shows a job, over frozen views."""
