from tests.serving.services import bundle, run_folder, served, small

__all__ = ["bundle", "run_folder", "served", "small"]  # fixtures
